import io
import json
import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from rollart.atomic_files import write_summary
from rollart.errors import StorageError, UserError
from rollart.events import (
    Cancel,
    Launch,
    Publish,
    Published,
    Resume,
    RunStarted,
    StepFinished,
    Suspend,
    Train,
    TrajectoryCancelled,
    TrajectoryFailed,
    TrajectoryFinished,
    Woke,
)
from rollart.observe.log import LogHeader, read_log
from rollart.observe.metrics import Metrics, Status
from rollart.observe.plots import moving_average
from rollart.observe.progress import Progress, Traffic, waits
from rollart.observe.recorder import Recorder, render_trajectory
from rollart.observe.trace import write_trace
from rollart.observe.trackers import JsonlTracker, read_rows
from rollart.types import (
    EngineId,
    EngineInfo,
    Failure,
    Task,
    TrajectoryInfo,
    Turn,
    token_trajectory,
)

TRAJECTORY = token_trajectory(
    id=7,
    group=2,
    task=Task(id=5, env="lake", domain="lake", seed=9),
    turns=(
        Turn(
            prompt_tokens=(1, 2),
            tokens=(3, 4),
            logprobs=(-0.5, -0.25),
            versions=(0, 1),
            observation="a1\nholes b2",
            action="down",
            reward=1.0,
        ),
    ),
    stop="terminated",
    success=True,
    reward=1.0,
)


def record_run(recorder: Recorder) -> None:
    engines = (EngineInfo(id="e0", pool="default", version=0),)
    launches = [
        Launch(id=each, group=0, member=each, attempt=0, task=0, slot=each, seed=0)
        for each in range(3)
    ]
    recorder.record(0.0, RunStarted(engines=engines, slots=3), launches)
    for each in range(2):
        info = TrajectoryInfo(
            id=each,
            born=0,
            reward=1.0,
            success=True,
            turns=1,
            cost=2,
            stop="terminated",
        )
        recorder.record(1.0, TrajectoryFinished(info=info), [])
    recorder.record(1.0, Woke(at_s=0.0), [Train(version=0, groups=((0, 1),), staleness=0)])
    recorder.record(1.5, TrajectoryCancelled(id=2, cost=1), [])
    recorder.record(2.0, StepFinished(version=1), [Publish(version=1)])
    recorder.record(2.1, Published(version=1), [Suspend(engine="e0")])
    recorder.record(2.2, Woke(at_s=0.0), [Resume(engine="e0")])


def test_a_run_leaves_its_directory_behind(tmp_path: Path):
    shown = io.StringIO()
    recorder = Recorder(tmp_path, name="demo", steps=1, file=shown)
    recorder.open(LogHeader(seed=0))
    recorder.progress.start()
    recorder.evaluation(0, {"success_rate": 0.25})
    recorder.samples(0, [TRAJECTORY])
    record_run(recorder)
    recorder.evaluation(1, {"success_rate": 0.75})
    recorder.close()
    recorder.finish({"success_before": 0.25, "success_after": 0.75})
    rows = read_rows(tmp_path / "metrics.jsonl")
    assert [row["step"] for row in rows] == [0, 1, 1]
    assert json.loads((tmp_path / "summary.json").read_text())["success_after"] == 0.75
    assert (tmp_path / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "samples" / "step-000001-7.txt").read_text() == render_trajectory(TRAJECTORY)
    assert len(list((tmp_path / "tensorboard").iterdir())) == 1
    assert len(read_log(tmp_path / "events.jsonl")[0].records) == 8
    assert shown.getvalue() == (
        "evaluation at step 0: success_rate 0.250\n"
        "step 1/1  reward 1.000  success 100.0%  1.0 trajectories/s  2 tokens/s  "
        "staleness 0.00 (max 0)  step 2.00 s (train 1.00 s, wait 1.00 s)  slots 58% busy  "
        "wasted 1 tokens (interrupted 1)\n"
        "evaluation at step 1: success_rate 0.750\n"
    )


def test_steps_that_teach_nothing_are_told_once(tmp_path: Path):
    shown = io.StringIO()
    recorder = Recorder(tmp_path, name="demo", steps=20, file=shown)
    recorder.open(LogHeader(seed=0))
    for step in range(16):
        recorder.record(step, Woke(at_s=0.0), [Train(version=step, groups=(), staleness=0)])
        no_signal = float(step != 2)
        finished = StepFinished(version=step + 1, metrics={"no_signal": no_signal})
        recorder.record(step + 0.5, finished, [])
    recorder.close()
    warnings = [line for line in shown.getvalue().splitlines() if line.startswith("warning")]
    assert len(warnings) == 1
    assert warnings[0].startswith("warning: the last 10 steps taught nothing: all attempts of each")
    assert "step 13/20" in shown.getvalue().split("warning")[0].splitlines()[-1]


def test_a_trajectory_reads_as_text():
    assert render_trajectory(TRAJECTORY) == (
        "trajectory 7 of group 2: succeeded\n"
        "task 5 (lake, seed 9)  reward 1  stop terminated  1 turns  2 tokens  weights 0 to 1\n\n"
        "turn 1\n    a1\n    holes b2\n> 'down'   reward 1, 2 tokens\n"
    )


def test_a_resumed_run_drops_the_rows_of_steps_it_makes_again(tmp_path: Path):
    path = tmp_path / "metrics.jsonl"
    first = JsonlTracker(path)
    for step in range(1, 5):
        first.add({"step": step, "reward_mean": 0.5})
    first.close()
    with path.open("a") as file:
        file.write('{"step": 5, "rew')
    second = JsonlTracker(path, resume_step=2)
    second.add({"step": 3, "reward_mean": 0.75})
    second.close()
    assert read_rows(path) == [
        {"step": 1, "reward_mean": 0.5},
        {"step": 2, "reward_mean": 0.5},
        {"step": 3, "reward_mean": 0.75},
    ]


def test_what_cannot_be_written_or_read_is_named(tmp_path: Path):
    blocked = tmp_path / "file"
    blocked.write_text("rubbish\n")
    with pytest.raises(StorageError, match="the summary cannot be written"):
        write_summary(blocked / "summary.json", {})
    with pytest.raises(StorageError, match="metrics cannot be written"):
        JsonlTracker(blocked / "metrics.jsonl")
    with pytest.raises(UserError, match="file:1: not a row of metrics"):
        read_rows(blocked)
    with pytest.raises(UserError, match="no such file; is this a run's directory"):
        read_rows(tmp_path / "metrics.jsonl")


@pytest.mark.parametrize("lost", [set[int](), {8, 9}])
def test_steps_that_teach_nothing_because_most_succeed_are_no_warning(
    tmp_path: Path, lost: set[int]
):
    shown = io.StringIO()
    recorder = Recorder(tmp_path, name="demo", steps=20, file=shown)
    recorder.open(LogHeader(seed=0))
    for step in range(11):
        is_won = step not in lost
        info = TrajectoryInfo(
            id=0,
            born=0,
            reward=float(is_won),
            success=is_won,
            turns=1,
            cost=1,
            stop="terminated",
        )
        recorder.record(step, TrajectoryFinished(info=info), [])
        trained = Train(version=step, groups=((0,),), staleness=0)
        recorder.record(step + 0.2, Woke(at_s=0.0), [trained])
        metrics = {"no_signal": 1.0}
        recorder.record(step + 0.5, StepFinished(version=step + 1, metrics=metrics), [])
    recorder.close()
    said = " ".join(shown.getvalue().split())
    assert "most succeed, so little is left to learn" in said
    assert "warning" not in said


def test_failures_are_told_once_of_a_kind_and_again_while_nothing_else_comes(tmp_path: Path):
    shown = io.StringIO()
    recorder = Recorder(tmp_path, name="demo", steps=20, file=shown)
    recorder.open(LogHeader(seed=0))
    failed = TrajectoryFailed(
        id=1, failure=Failure(kind="env_timeout", message="step took long"), cost=0
    )
    for _ in range(40):
        recorder.record(0.0, failed, [])
    recorder.close()
    said = " ".join(shown.getvalue().split())
    assert said.count("an attempt failed and is retried: env_timeout: step took long") == 1
    told = re.findall(r"(\d+) attempts in a row failed, the last: env_timeout", said)
    assert told == ["16", "32"]


def test_the_first_updates_that_are_left_out_are_told(tmp_path: Path):
    shown = io.StringIO()
    recorder = Recorder(tmp_path, name="demo", steps=20, file=shown)
    recorder.open(LogHeader(seed=0))
    for step in range(3):
        recorder.record(step, Woke(at_s=0.0), [Train(version=step, groups=(), staleness=0)])
        metrics = {"skipped": float(step)}
        recorder.record(step + 0.5, StepFinished(version=step + 1, metrics=metrics), [])
    recorder.close()
    said = " ".join(shown.getvalue().split())
    assert said.count("updates were skipped") == 1
    assert "step 2: 1 updates were skipped because their loss or gradient" in said


class Terminal(io.StringIO):
    """A terminal, wide enough that nothing is cut off."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


def screens(terminal: Terminal) -> list[str]:
    """Return what was drawn, without colours; every redrawing begins with the panel's title."""
    text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", terminal.getvalue()).replace("\r", "\n")
    lines = [re.sub(r"  +", "  ", line.strip()) for line in text.splitlines()]
    return "\n".join(line for line in lines if line).split("demo")


def test_the_live_panel_shows_every_part(tmp_path: Path, terminal: Terminal):
    recorder = Recorder(tmp_path, name="demo", steps=3, file=terminal)
    recorder.open(LogHeader(seed=0))
    progress = recorder.progress
    progress.waiting_for = lambda: "1 of 1 groups"
    progress.in_flight = lambda: {EngineId("e0"): 2}
    progress.start()
    record_run(recorder)
    launches = [
        Launch(id=each, group=1, member=each, attempt=0, task=0, slot=each, seed=0)
        for each in (3, 4, 5)
    ]
    failed = TrajectoryFailed(id=5, failure=Failure(kind="env_timeout", message="slow"), cost=4)
    recorder.record(2.5, Woke(at_s=0.0), launches)
    recorder.record(2.6, failed, [])
    recorder.record(2.7, Woke(at_s=0.0), [Cancel(id=4, reason="stale")])
    recorder.record(2.8, TrajectoryCancelled(id=4, cost=8), [])
    recorder.record(2.9, Woke(at_s=0.0), [launches[1], launches[2]])
    assert progress._live is not None
    progress._live.refresh()
    last = screens(terminal)[-1]
    progress.warn("disk is nearly full")
    recorder.close()
    assert re.search(r"step 1/3  0:0[23]", last)
    for line in (
        "reward  1.000  success 100.0%",
        "speed  1.0 trajectories/s  2 tokens/s  step 2.00 s",
        "staleness  0.00 (max 0)",
        "trainer  waits for 1 of 1 groups; 0 trajectories in the buffer",
        "engines  1 serve 2 requests",
        "slots  3 of 3 busy (2 wait for engines, 1 in environments)",
        "wasted  76.5% of tokens: cancelled:stale 8, failed:env_timeout 4, cancelled:interrupted 1",
    ):
        assert line in last.splitlines()
    assert "warning: disk is nearly full" in terminal.getvalue()
    stays = screens(terminal)[-1].splitlines()[-1]
    assert stays.startswith("step 1/3  reward 1.000  success 100.0%")


@pytest.mark.parametrize(
    ("in_flight", "engines"),
    [
        ({}, "2 serve"),
        ({"e0": 3, "e1": 0}, "1 serve 3 requests; 1 wait for requests"),
        ({"e0": 0, "e1": 0, "lent": 0}, "2 wait for requests"),
    ],
    ids=["unknown", "one idle", "all idle"],
)
def test_the_panel_asks_engines_what_they_have_to_do(terminal: Terminal, in_flight, engines):
    metrics = Metrics()
    infos = [EngineInfo(id=id_, pool="default", version=0) for id_ in ("e0", "e1")]
    lent = EngineInfo(id="lent", pool="training", version=0, lent=True)
    launch = Launch(id=0, group=0, member=0, attempt=0, task=0, slot=0, seed=0)
    metrics.add(0.0, RunStarted(engines=(*infos, lent), slots=4), [launch])
    progress = Progress(metrics, steps=3, title="demo", file=terminal)
    progress.in_flight = lambda: in_flight
    progress.start()
    progress.stop()
    assert f"engines  {engines}" in screens(terminal)[-1].splitlines()


STATUS = Status(
    step=0, running=2, slots=4, waiting=3, engines=2, suspended=0, training_since_s=None
)


@pytest.mark.parametrize(
    ("status", "traffic", "engines", "slots"),
    [
        (STATUS, None, "2 serve", "2 of 4 busy; 2 wait for work to be admitted"),
        (
            STATUS,
            Traffic(requests=0, idle=2),
            "2 wait for requests",
            "2 of 4 busy (0 wait for engines, 2 in environments); 2 wait for work to be admitted",
        ),
        (
            replace(STATUS, running=4, suspended=1),
            Traffic(requests=3, idle=0),
            "1 of 2 change weights; 1 serve 3 requests",
            "4 of 4 busy (3 wait for engines, 1 in environments)",
        ),
        (
            replace(STATUS, running=1, slots=1, suspended=2),
            Traffic(requests=5, idle=0),
            "2 of 2 change weights",
            "1 of 1 busy (1 wait for engines, 0 in environments)",
        ),
        (
            replace(STATUS, running=0),
            None,
            "2 wait for requests",
            "0 of 4 busy; 4 wait for work to be admitted",
        ),
    ],
    ids=["unknown", "idle", "one changes weights", "all change weights", "nothing runs"],
)
def test_each_part_says_what_it_waits_for(status, traffic, engines, slots):
    assert waits(status, 1.0, wanted="2 of 4 groups", traffic=traffic) == [
        ("trainer", "waits for 2 of 4 groups; 3 trajectories in the buffer"),
        ("engines", engines),
        ("slots", slots),
    ]


def test_a_trainer_that_trains_says_for_how_long():
    training = replace(STATUS, training_since_s=0.5)
    assert waits(training, 2.0, wanted="")[0] == ("trainer", "trains for 1.5 s")


def test_a_line_tells_the_time_left_what_was_waited_for_and_why_tokens_were_wasted():
    shown = io.StringIO()
    progress = Progress(Metrics(), steps=10, title="demo", file=shown)
    row = dict.fromkeys(
        [
            "reward_mean",
            "success_rate",
            "trajectories_per_s",
            "tokens_per_s",
            "staleness_mean",
            "staleness_max",
            "step_s",
            "train_s",
            "wasted_tokens",
            "trainer_wait_s",
            "slots_busy",
            "engines_suspended_s",
        ],
        0.0,
    )
    progress.step(row | {"step": 1, "time_s": 10.0})
    progress.step(row | {"step": 2, "time_s": 20.0})
    assert "left" not in shown.getvalue().splitlines()[0]
    assert shown.getvalue().splitlines()[1].endswith("1:20 left")

    causes = {
        "wasted/dropped:stale": 70.0,
        "wasted/cancelled:stale": 10.0,
        "wasted/failed:env": 20.0,
    }
    waited = {"trainer_wait_s": 0.25, "slots_busy": 0.5, "engines_suspended_s": 0.1}
    progress.step(row | waited | causes | {"wasted_tokens": 100.0, "step": 3, "time_s": 30.0})
    assert (
        shown.getvalue()
        .splitlines()[2]
        .endswith(
            "step 0.00 s (train 0.00 s, wait 0.25 s)  slots 50% busy  engines paused 0.10 s  "
            "wasted 100 tokens (stale 80, env 20)  1:10 left"
        )
    )


def test_costs_are_shown_in_the_unit_of_the_policy():
    shown = io.StringIO()
    progress = Progress(Metrics(), steps=10, title="demo", unit="actions", file=shown)
    row = defaultdict(float, tokens_per_s=120.0, wasted_tokens=6.0)
    progress.step(row)
    assert "120 actions/s" in shown.getvalue()
    assert "wasted 6 actions" in shown.getvalue()
    assert "tokens" not in shown.getvalue()


def test_a_log_becomes_a_timeline(tmp_path: Path):
    recorder = Recorder(tmp_path, name="demo", steps=1, file=io.StringIO())
    recorder.open(LogHeader(seed=0))
    record_run(recorder)
    recorder.close()
    write_trace(tmp_path / "trace.json", read_log(tmp_path / "events.jsonl")[0].records)
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    bars = [(each["name"], each["ts"], each["dur"]) for each in events if each["ph"] == "X"]
    assert bars == [
        ("0 finished", 0, 1_000_000),
        ("1 finished", 0, 1_000_000),
        ("2 cancelled", 0, 1_500_000),
        ("step 1", 1_000_000, 1_000_000),
        ("publish 1", 2_000_000, 100_000),
        ("update e0", 2_100_000, 100_000),
    ]


def test_a_moving_average_looks_back_only():
    assert moving_average([1, 3, 5, 7], window=2) == [1.0, 2.0, 4.0, 6.0]
