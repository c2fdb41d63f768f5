"""A log that was tampered with is found out; one that was cut off is not held against it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rollart.cli.entry import main
from rollart.control.rules import MODES, Batching, Dispatch, Filter, Rules
from rollart.control.scheduler import Scheduler
from rollart.control.snapshot import encode_rules
from rollart.control.staleness import Staleness
from rollart.control.task_order import TaskKind, TaskMix
from rollart.errors import UserError
from rollart.events import (
    EngineSuspended,
    EngineUpdated,
    Launch,
    Publish,
    Published,
    RunStarted,
    StepFinished,
    Suspend,
    Train,
    TrajectoryFinished,
    Update,
)
from rollart.observe.log import EventLog, LogHeader, read_log
from rollart.observe.replay import ReplayError, replay
from rollart.types import EngineId, EngineInfo, TrajectoryInfo, Version

RULES = Rules(
    steps=4,
    seed=3,
    mode=MODES["rollart"],
    batching=Batching(groups_per_step=2, group_size=2),
    staleness=Staleness(alpha=2),
    filter=Filter(drop_zero_variance=False),
)


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> Path:
    """The directory of a run of four steps."""
    directory = tmp_path_factory.mktemp("run")
    write_run(directory)
    return directory


def write_run(directory: Path, rules: Rules = RULES, tasks: TaskMix | None = None) -> None:
    """Play a run against the scheduler and write its log as the recorder does."""
    engine = EngineInfo(id=EngineId("e"), pool="local", version=Version(0))
    scheduler = Scheduler(rules) if tasks is None else Scheduler(rules, domain_of=tasks.domain)
    inbox = [RunStarted(engines=(engine,), slots=4)]
    held = Version(0)
    header = LogHeader(seed=rules.seed, rules=encode_rules(rules, tasks))
    with EventLog(directory / "events.jsonl", header) as written:
        now = 0.0
        while not scheduler.done:
            event, now = inbox.pop(0), now + 0.5
            commands = scheduler.handle(event, now)
            written.append(now, event, commands)
            for command in commands:
                match command:
                    case Launch():
                        info = TrajectoryInfo(
                            id=command.id,
                            born=held,
                            reward=1.0,
                            success=True,
                            turns=1,
                            cost=3,
                            stop="terminated",
                        )
                        inbox.append(TrajectoryFinished(info=info))
                    case Train():
                        inbox.append(StepFinished(version=Version(command.version + 1)))
                    case Publish():
                        inbox.append(Published(version=command.version))
                    case Suspend():
                        inbox.append(EngineSuspended(engine=command.engine))
                    case Update():
                        held = command.version
                        inbox.append(EngineUpdated(engine=command.engine, version=held))
                    case _:
                        pass


@pytest.fixture
def tampered(log, tmp_path):
    """Return a function that edits the log's lines and gives the directory of the result."""

    def edit(change: Callable[[list[dict]], None]) -> Path:
        lines = [json.loads(line) for line in (log / "events.jsonl").read_text().splitlines()]
        change(lines)
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / "events.jsonl").write_text(text)
        return tmp_path

    return edit


def find(lines: list[dict], name: str) -> tuple[int, dict]:
    """Return the place of the first record that commands this, and the command."""
    for number, line in enumerate(lines):
        for command in line.get("do", ()):
            if name in json.dumps(command):
                return number, command
    raise AssertionError(f"no {name} in the log")


def test_an_honest_log_is_proved(log):
    proof = replay(log)
    trained = proof["ended"]["trained"]
    assert trained == 16
    assert (proof["same_commands"], proof["lost"], proof["trained_twice"]) == (True, 0, 0)
    assert (proof["open"], proof["promised_staleness"]) == (0, 8)
    assert proof["max_staleness"] <= 2
    assert proof["trajectories"] == sum(proof["ended"].values())


def test_a_run_that_opened_the_longest_first_is_proved_by_the_domains_in_its_header(tmp_path):
    kinds = [TaskKind(name=name, domain=name) for name in ("lake", "sums", "code")]
    rules = replace(RULES, steps=12, dispatch=Dispatch(order="longest", lookahead_groups=6))
    write_run(tmp_path, rules, TaskMix(kinds, seed=4))
    log = tmp_path / "events.jsonl"
    tasks = [
        command.task
        for record in read_log(log)[0].records
        for command in record.commands
        if isinstance(command, Launch)
    ]
    assert tasks != sorted(tasks)
    assert replay(tmp_path)["same_commands"]
    first, *rest = log.read_text().splitlines(keepends=True)
    header = json.loads(first)
    del header["rules"]["tasks"]
    log.write_text(json.dumps(header) + "\n" + "".join(rest))
    with pytest.raises(ReplayError, match="gave other commands on replay"):
        replay(tmp_path)


def test_a_command_that_was_changed_is_found(tampered):
    def change(lines):
        _, launch = find(lines, "Launch")
        launch["seed"] += 1

    with pytest.raises(ReplayError, match=r"event 1 \(RunStarted.* gave other commands on replay"):
        replay(tampered(change))


def test_a_command_that_was_left_out_is_found(tampered):
    def change(lines):
        number, train = find(lines, "Train")
        lines[number]["do"].remove(train)

    with pytest.raises(ReplayError, match="gave other commands on replay"):
        replay(tampered(change))


def test_an_attempt_that_ends_twice_is_found(tampered):
    def change(lines):
        number = next(
            number for number, line in enumerate(lines) if "TrajectoryFinished" in str(line)
        )
        lines.insert(number + 1, lines[number])

    with pytest.raises(ReplayError, match=r"event 3 \(TrajectoryFinished.* cannot have happened"):
        replay(tampered(change))


def test_an_event_that_cannot_have_happened_is_found(tampered):
    def change(lines):
        for line in lines:
            if "TrajectoryFinished" in json.dumps(line.get("event", "")):
                text = json.dumps(line["event"]).replace('"id": 0', '"id": 999')
                line["event"] = json.loads(text)
                break

    with pytest.raises(ReplayError, match=r"event 2 \(.* cannot have happened: KeyError\(999\)"):
        replay(tampered(change))


def test_a_batch_that_claims_another_age_is_found(tampered):
    def change(lines):
        _, train = find(lines, "Train")
        train["staleness"] += 9

    with pytest.raises(ReplayError, match="gave other commands on replay"):
        replay(tampered(change))


def test_a_scheduler_that_keeps_wrong_books_of_ages_is_found(tampered, monkeypatch):
    def forget_births(lines):
        for line in lines[-12:]:
            if "info" in line.get("event", {}):
                line["event"]["info"]["born"] = 0

    monkeypatch.setattr(
        "rollart.observe.replay._handle", lambda _scheduler, record, **_: record.commands
    )
    with pytest.raises(ReplayError, match="but a trajectory of it was born of 0"):
        replay(tampered(forget_births))


def test_a_log_under_other_rules_is_found(tampered):
    def change(lines):
        lines[0]["rules"]["mode"] = "sync_plus"

    with pytest.raises(ReplayError, match="gave other commands on replay"):
        replay(tampered(change))


def test_values_of_the_wrong_type_are_found(tampered):
    def change(lines):
        for line in lines:
            if "TrajectoryFinished" in json.dumps(line.get("event", "")):
                line["event"]["info"]["born"] = "yesterday"
                break

    wrong = r":3: .*TrajectoryFinished.info.born must be an integer, got 'yesterday'"
    with pytest.raises(UserError, match=wrong):
        replay(tampered(change))


def test_an_event_that_no_scheduler_can_take_is_found(tampered):
    def change(lines):
        for line in lines:
            if "TrajectoryFinished" in json.dumps(line.get("event", "")):
                line["event"]["info"]["id"] = 10**6
                break

    with pytest.raises(ReplayError, match=r"event 2 \(.* cannot have happened: KeyError"):
        replay(tampered(change))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda header: header["rules"].pop("batching"), "KeyError\\('batching'\\)"),
        (lambda header: header["rules"]["retry"].update(luck=7), "unexpected keyword .* 'luck'"),
        (lambda header: header["rules"].update(mode="warp"), "run.mode = 'warp'"),
        (lambda header: header.update(snapshot={"version": 1}), "KeyError\\('next_group'\\)"),
    ],
)
def test_a_header_no_scheduler_can_be_made_from_is_named(tampered, change, named):
    with pytest.raises(ReplayError, match=f"no scheduler can be made from .*{named}"):
        replay(tampered(lambda lines: change(lines[0])))


def test_a_tampered_log_is_told_in_one_message(tampered, capsys):
    def change(lines):
        _, launch = find(lines, "Launch")
        launch["seed"] += 1

    assert main(["replay", str(tampered(change))]) == 2
    told = capsys.readouterr().err
    assert "the log proves nothing: event 1 (RunStarted" in told
    assert "It was changed after the run" in told
    assert "bug in rollart" not in told


def test_a_torn_last_line_is_left_out(log, tmp_path):
    text = (log / "events.jsonl").read_text()
    whole = text.rstrip("\n").count("\n")
    (tmp_path / "events.jsonl").write_text(text[:-20])
    assert replay(tmp_path)["events"] == whole - 1


def test_a_run_that_was_cut_off_names_what_was_open(tampered):
    def change(lines):
        number, _ = find(lines, "Launch")
        del lines[number + 1 :]

    proof = replay(tampered(change))
    assert (proof["trajectories"], proof["open"], proof["lost"]) == (4, 4, 0)
    assert proof["ended"] == {}


def test_a_replay_ends_with_one_sentence_and_says_where_the_timeline_is(log, tmp_path, capsys):
    trace = tmp_path / "trace.json"
    assert main(["replay", str(log), "--trace", str(trace)]) == 0
    assert trace.exists()
    told = capsys.readouterr().out.splitlines()
    assert told[-2:] == [
        f"timeline {trace}: open it in https://ui.perfetto.dev or chrome://tracing",
        "proved: the scheduler decides the same again, every trajectory ended exactly once, none "
        "was lost or trained twice, staleness was at most 2 (promised 8)",
    ]
    assert main(["replay", str(log), "--trace", str(trace), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == replay(log)


def test_a_replay_of_a_run_that_was_cut_off_says_how_many_were_open(tampered, capsys):
    def change(lines):
        number, _ = find(lines, "Launch")
        del lines[number + 1 :]

    assert main(["replay", str(tampered(change))]) == 0
    said = capsys.readouterr().out
    assert "no trajectory ended twice, 4 of 4 were open when the log ended, none was lost" in said
    assert said.endswith("or trained twice, no step was made\n")


def test_a_replay_of_a_run_in_which_nothing_ran_says_so(tampered, capsys):
    def change(lines):
        del lines[1:]

    assert main(["replay", str(tampered(change))]) == 0
    assert capsys.readouterr().out.endswith(
        "nothing ran: the log holds no trajectory, so it proves nothing\n"
    )
