"""The scheduler driven in simulated time: endings, sameness, failures, lending."""

from collections import Counter
from dataclasses import replace

import pytest
from small_worlds import LONG, SHORT, small_cluster, small_world

from rollart.config.simulation import Constants
from rollart.control.lending import Lending
from rollart.control.routing import Routing
from rollart.control.rules import MODES, Redundancy
from rollart.control.scheduler import check
from rollart.errors import ConfigError, UserError
from rollart.events import (
    Admit,
    Cancel,
    EngineJoined,
    EngineLost,
    EngineUpdated,
    Launch,
    Lend,
    Recall,
    Train,
    TrajectoryCancelled,
    TrajectoryFailed,
    TrajectoryFinished,
    Update,
)
from rollart.hardware.gpus import gpu_named
from rollart.observe.log import encode_record
from rollart.sim.cluster import Disaggregation, RolloutPool
from rollart.sim.simulator import Simulator
from rollart.sim.workload import Latency, SyntheticWorkload
from rollart.sim.world import OutageOptions, World


class Recording:
    """Everything that happened, as the event log writes it."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.events: Counter[type] = Counter()
        self.commands: Counter[type] = Counter()
        self.trains: list[Train] = []

    def __call__(self, now, event, commands) -> None:
        self.lines.append(encode_record(now, event, commands).decode())
        self.events[type(event)] += 1
        self.commands.update(type(each) for each in commands)
        self.trains += [each for each in commands if isinstance(each, Train)]


def dying(mtbf_s: float, repair_s: float, *, seed: int = 0) -> OutageOptions:
    return OutageOptions(mtbf_s=mtbf_s, repair_s=repair_s, seed=seed)


def play(world: World) -> tuple[Simulator, Recording]:
    recording = Recording()
    simulator = Simulator(world, observers=[recording])
    simulator.run()
    check(simulator.scheduler)
    simulator.fleet.router.check()
    return simulator, recording


def ended_once(recording: Recording) -> bool:
    events = recording.events
    ends = sum(events[kind] for kind in (TrajectoryFinished, TrajectoryFailed, TrajectoryCancelled))
    return ends == recording.commands[Launch]


@pytest.mark.parametrize("mode", MODES)
def test_every_attempt_ends_once_and_every_step_is_made(mode):
    simulator, recording = play(small_world(mode))
    assert ended_once(recording)
    assert [train.version for train in recording.trains] == [0, 1, 2]
    assert simulator.attempts == {}
    assert simulator.finished == {}
    if MODES[mode].bound == "always":
        alpha = simulator.scheduler.bound.alpha
        assert max(train.staleness for train in recording.trains) <= alpha


@pytest.mark.parametrize("mode", MODES)
def test_the_same_seed_gives_the_same_events_byte_for_byte(mode):
    first, again, other = (
        play(small_world(mode, seed=seed, outages=dying(200.0, 20.0, seed=seed)))[1].lines
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize("mode", MODES)
def test_engines_that_die_are_lost_and_join_again_with_the_newest_weights(mode):
    simulator, recording = play(small_world(mode, outages=dying(60.0, 30.0)))
    assert simulator.outages.count > 5
    assert recording.events[EngineLost] == simulator.outages.count
    assert 0 <= recording.events[EngineLost] - recording.events[EngineJoined] <= 4
    assert recording.commands[Admit] == recording.events[EngineJoined]
    assert ended_once(recording)
    assert len(recording.trains) == 3
    held = {member.engine.version for member in simulator.fleet.members.values()}  # pyright: ignore
    assert max(held) == 3


def test_a_run_whose_only_engine_dies_waits_for_it():
    only = (RolloutPool(name="one", gpu=gpu_named("H800"), gpus=1, tp=1),)
    world = small_world(cluster=small_cluster(rollout=only), outages=dying(40.0, 40.0))
    simulator, recording = play(world)
    assert simulator.outages.count > 3
    assert len(recording.trains) == 3


def test_an_engine_that_dies_while_it_loads_answers_nothing():
    cluster = small_cluster(constants=Constants(install_gb_s=0.5))
    _, recording = play(small_world(cluster=cluster, outages=dying(30.0, 5.0)))
    assert recording.commands[Update] > recording.events[EngineUpdated]
    assert len(recording.trains) == 3


def test_failing_environments_are_tried_again():
    tasks = (replace(LONG, failure_rate=0.2, failure_after=Latency(mean_s=60.0)), SHORT)
    workload = SyntheticWorkload(tasks, seed=0)
    _, recording = play(small_world(workload=workload))
    assert recording.events[TrajectoryFailed] > 0
    assert ended_once(recording)
    assert len(recording.trains) == 3


def test_nothing_but_failures_ends_the_run_with_their_reason():
    workload = SyntheticWorkload((replace(LONG, failure_rate=0.999),), seed=0)
    with pytest.raises(UserError, match="attempts in a row failed; the last: env_error"):
        play(small_world(workload=workload))


def test_redundant_groups_are_cancelled_when_enough_are_complete():
    world = small_world()
    rules = replace(world.rules, redundancy=Redundancy(extra_groups=2, extra_members=1))
    _, recording = play(replace(world, rules=rules, slots=64))
    assert recording.commands[Cancel] > 0
    assert ended_once(recording)


def test_training_hardware_is_lent_and_recalled():
    world = small_world(cluster=small_cluster(lend_tp=1))
    rules = replace(world.rules, lending=Lending(enabled=True, min_idle_s=0.0))
    simulator, recording = play(replace(world, rules=rules))
    assert recording.commands[Lend] == recording.commands[Recall] > 0
    assert simulator.fleet.busy_s()["training"] > 0


@pytest.mark.parametrize("mode", ["rollart", "sync"])
def test_prefill_and_decode_may_be_apart(mode):
    split = Disaggregation(prefill=1, decode=1, decode_gpu=gpu_named("H20"))
    pool = RolloutPool(name="split", gpu=gpu_named("H800"), gpus=4, tp=1, disaggregation=split)
    _, recording = play(small_world(mode, cluster=small_cluster(rollout=(pool,))))
    assert ended_once(recording)
    assert len(recording.trains) == 3


def test_only_modes_with_affinity_route_by_domain():
    routing = Routing(affinity={"default": ("compute", "bandwidth")})
    used = {
        mode: play(small_world(mode, routing=routing))[0].fleet.busy_s()
        for mode in ("areal", "rollart")
    }
    assert used["rollart"]["bandwidth"] == 0
    assert used["areal"]["bandwidth"] > 0


def test_a_run_without_environments_is_refused():
    with pytest.raises(ConfigError, match=r"run.environments = 0: must be at least 1"):
        small_world(slots=0)
