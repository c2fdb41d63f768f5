"""Runs read from their logs and made again."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from rollart.config.simulation import ScoringOptions
from rollart.control.lending import Lending
from rollart.control.routing import Routing
from rollart.control.rules import MODES, Batching, Redundancy, Rules
from rollart.control.snapshot import encode_rules
from rollart.control.staleness import Staleness
from rollart.control.task_order import TaskKind, TaskMix
from rollart.errors import UserError
from rollart.events import Launch
from rollart.observe.log import EventLog, LogHeader
from rollart.seeds import derive_seed
from rollart.sim.fleet import FleetMember
from rollart.sim.recorded import ask, compare, load, unchanged
from rollart.sim.simulator import Simulator
from rollart.sim.timed import TimedEngine
from rollart.sim.workload import Script, ScriptTurn
from rollart.sim.world import OutageOptions, World
from rollart.types import EngineId, EpisodeLimits, GroupId, SlotId, TrajectoryId, Version

MIX = TaskMix([TaskKind(name="short", domain="s"), TaskKind(name="long", domain="l")], seed=4)
FIGURES = ("step_s", "staleness_mean", "staleness_max")


class Numbers:
    """Attempts whose time is their engine's, as in the shipped environments."""

    def __init__(self, *, failure_rate: float = 0.0, is_scored: bool = False) -> None:
        self._failure_rate = failure_rate
        self._is_scored = is_scored

    def domain(self, task):
        return MIX.domain(task)

    def script(self, launch):
        random = Random(derive_seed(launch.task, launch.member, launch.attempt))
        factor = 10 if self.domain(launch.task) == "l" else 1
        turn = ScriptTurn(reads=5, samples=3, step_s=0.0, generate_s=random.uniform(0.1, factor))
        return Script(
            domain=self.domain(launch.task),
            reset_s=0.0,
            turns=(turn,) * random.randint(1, 4),
            limits=EpisodeLimits(max_turns=8, max_tokens=1000),
            score_s=random.uniform(0.1, 1) if self._is_scored else None,
            fails=random.random() < self._failure_rate,
            reward=random.random(),
        )

    def train_s(self, tokens, *, version):
        return Random(version).uniform(1, 9)

    def publish_s(self, version):
        return 0.25 + 0.01 * version

    def update_s(self, version, *, engine):
        return 0.5 + 0.01 * version

    def recall_s(self):
        return self.lend_s()

    def lend_s(self):
        return 0.5


def record(directory: Path, mode: str, *, engines: int = 1, numbers=None, **changes) -> Path:
    """Make a run and leave its log."""
    numbers = numbers or Numbers()
    outages = changes.pop("outages", OutageOptions())
    rules = Rules(
        **{
            "steps": 24,
            "mode": MODES[mode],
            "batching": Batching(groups_per_step=2, group_size=3),
            **changes,
        }
    )
    lent = 1 if rules.lending.enabled else 0
    world = World(
        rules=rules,
        workload=numbers,
        make_engines=lambda loop: [
            FleetMember(
                engine=TimedEngine(EngineId(f"engine-{number}"), loop=loop),
                pool="local",
                lent=number >= engines,
            )
            for number in range(engines + lent)
        ],
        durations=numbers,
        slots=12,
        rewards=ScoringOptions(kind="dedicated"),
        outages=outages,
    )
    header = LogHeader(seed=rules.seed, rules=encode_rules(rules, MIX))
    with EventLog(directory / "events.jsonl", header) as log:
        Simulator(world, observers=[log.append]).run()
    return directory


def history(world: World):
    seen = []
    observer = lambda now, event, commands: seen.append((now, type(event), tuple(commands)))  # noqa: E731
    Simulator(world, observers=[observer]).run()
    return seen


@pytest.mark.parametrize("mode", MODES)
def test_a_recorded_run_takes_as_long_again_and_is_as_stale(mode, tmp_path):
    found = compare(record(tmp_path, mode))
    assert found["error"] == pytest.approx(dict.fromkeys(FIGURES, 0.0), abs=1e-9)
    assert found["simulated"]["staleness"] == found["measured"]["staleness"]
    assert (found["mode"], found["steps"]) == (mode, 24)


@pytest.mark.parametrize("mode", MODES)
def test_failures_scores_surplus_and_several_engines_are_told_by_a_log(mode, tmp_path):
    run = record(
        tmp_path,
        mode,
        engines=2,
        numbers=Numbers(failure_rate=0.1, is_scored=True),
        redundancy=Redundancy(extra_groups=1, extra_members=1),
        staleness=Staleness(alpha=2),
        lending=Lending(enabled=True),
    )
    found = compare(run)
    assert found["error"]["step_s"] < 0.25
    assert found["drawn_error"]["step_s"] < 0.5


def test_runs_drawn_from_a_recorded_one_are_alike_and_repeatable(tmp_path):
    found = compare(record(tmp_path, "sync_plus", steps=60), draws=3)
    assert found == compare(tmp_path, draws=3)
    assert found["drawn"]["step_s"] != found["measured"]["step_s"]
    assert found["drawn_error"]["step_s"] < 0.2
    assert history(load(tmp_path, seed=1)) != history(load(tmp_path, seed=2))


def test_nothing_is_drawn_from_a_run_too_short_to_choose_from(tmp_path):
    found = compare(record(tmp_path, "rollart", steps=11))
    assert found["not_drawn"] == "fewer than 12 steps, too few to draw other runs like it"
    assert found.keys().isdisjoint({"drawn", "drawn_error"})
    with pytest.raises(UserError, match=r"fewer than 12 steps, too few .*; omit the seed"):
        load(tmp_path, seed=1)


def test_attempts_a_log_does_not_have_are_drawn_from_their_domain(tmp_path):
    world = load(record(tmp_path, "rollart"))
    tasks = {MIX.domain(task): task for task in range(1000, 1020)}
    longest = {
        domain: max(_seconds(world, task, member) for member in range(200))
        for domain, task in tasks.items()
    }
    assert longest["s"] < 4.5 < longest["l"]


def _seconds(world: World, task: int, member: int) -> float:
    launch = Launch(
        id=TrajectoryId(0),
        group=GroupId(0),
        member=member,
        attempt=0,
        task=task,
        slot=SlotId(0),
        seed=0,
    )
    return sum(turn.generate_s + turn.step_s for turn in world.workload.script(launch).turns)


def changed_to(mode: str, slots: int = 12):
    return lambda rules, _: (replace(rules, mode=MODES[mode]), slots)


def test_a_larger_batch_takes_longer_to_train(tmp_path):
    run = record(tmp_path, "sync_plus")

    def doubled(rules: Rules, slots: int) -> tuple[Rules, int]:
        groups = 2 * rules.batching.groups_per_step
        return replace(rules, batching=replace(rules.batching, groups_per_step=groups)), slots

    version = Version(1)
    once, twice = (
        load(run, change=change).durations.train_s(0, version=version)
        for change in (unchanged, doubled)
    )
    assert twice == 2 * once > 0


def test_a_recorded_run_can_be_asked_what_if(tmp_path):
    run = record(tmp_path, "sync_plus")
    faster, slower = (
        ask(run, change=change) for change in (changed_to("rollart"), changed_to("sync_plus", 2))
    )
    assert (faster["mode"], faster["asked_mode"]) == ("sync_plus", "rollart")
    assert faster["simulated"] == slower["simulated"]
    assert faster["ratio"] < 1 < slower["ratio"]
    assert ask(run, change=changed_to("sync_plus"))["ratio"] == 1


@pytest.mark.parametrize(("recorded", "waits"), [("rollart", True), ("sync", False)])
def test_lock_step_is_asked_of_a_log_unless_its_waiting_is_in_the_log(recorded, waits, tmp_path):
    run = record(tmp_path, recorded)
    assert load(run, change=changed_to("sync")).rules.mode.lockstep is waits


def test_a_run_whose_engines_died_is_made_again_without_deaths(tmp_path):
    outages = OutageOptions(mtbf_s=40.0, repair_s=5.0)
    found = compare(record(tmp_path, "rollart", engines=3, outages=outages))
    assert found["error"]["step_s"] < 0.25


def test_routing_is_read_from_the_config(tmp_path):
    record(tmp_path, "rollart")
    assert load(tmp_path).routing == Routing()
    config = '[routing]\nsticky = false\n[affinity.tasks]\ns = ["a", "b"]\nt = "b"\n'
    (tmp_path / "config.toml").write_text(config)
    assert load(tmp_path).routing == Routing(sticky=False, affinity={"s": ("a", "b"), "t": ("b",)})
    (tmp_path / "config.toml").write_text("[routing]\nfast = true\n")
    with pytest.raises(UserError, match=r"\[routing\] and \[affinity\] cannot be used.*fast"):
        load(tmp_path)


def lines_of(directory: Path) -> list[str]:
    return (directory / "events.jsonl").read_text().splitlines(keepends=True)


def test_a_log_that_cannot_be_simulated_says_why(tmp_path):
    with pytest.raises(UserError, match="no such event log"):
        load(tmp_path)
    record(tmp_path, "rollart")
    first, *rest = lines_of(tmp_path)
    log, header = tmp_path / "events.jsonl", json.loads(first)

    log.write_text(json.dumps({**header, "format": 99}) + "\n")
    with pytest.raises(UserError, match="log format 99; this version"):
        load(tmp_path)
    old = {name: each for name, each in header["rules"].items() if name != "dispatch"}
    log.write_text(json.dumps({**header, "rules": old}) + "\n" + "".join(rest))
    with pytest.raises(UserError, match=r"'dispatch'.*\n.*nother version of rollart"):
        load(tmp_path)
    log.write_text(first + "".join(rest[:5]))
    with pytest.raises(
        UserError, match="has 0 complete optimizer steps; simulating the run needs at least 3"
    ):
        load(tmp_path)
    log.write_text(first + "".join(rest[1:]))
    with pytest.raises(UserError, match=r"cannot be simulated: .*never launched"):
        load(tmp_path)
    log.write_text(first + "".join(rest) + first)
    with pytest.raises(UserError, match="the run was resumed"):
        load(tmp_path)


def test_a_run_cut_off_is_simulated_as_far_as_it_came(tmp_path):
    record(tmp_path, "rollart")
    lines = lines_of(tmp_path)
    (tmp_path / "events.jsonl").write_text("".join(lines[: len(lines) // 2]))
    found = compare(tmp_path, draws=1)
    assert 3 <= found["steps"] < 24
    assert found["error"]["step_s"] < 0.2
    assert load(tmp_path).open_ended
