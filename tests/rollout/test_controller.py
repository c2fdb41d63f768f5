"""Whole runs in this process: scripted engine, counting trainer, environments good and bad."""

import asyncio
from collections import Counter

import pytest
from conditions import BOUND_S, until
from live_parts import (
    CRASHED,
    AsyncCountdown,
    Countdown,
    Crashing,
    HeldTrainer,
    Hung,
    InlineCountdown,
    Live,
    Slow,
)

from rollart.control.rules import MODES, Batching, Filter, Redundancy, Retry, Rules
from rollart.control.staleness import Staleness
from rollart.errors import StorageError, UserError
from rollart.events import (
    Cancel,
    Drop,
    Launch,
    StepFinished,
    StopRequested,
    Train,
    TrajectoryFailed,
    TrajectoryFinished,
)
from rollart.inference.scripted import ScriptedEngine
from rollart.observe.replay import replay
from rollart.rollout.env_slot import Timeouts
from rollart.types import EpisodeLimits

ALPHA = 2
PROMISED = {"sync": 0, "sync_plus": 0, "one_off": 1, "rollart": 3 * ALPHA + 2}
MODE_NAMES = tuple(MODES)


def rules(mode: str = "rollart", **changes) -> Rules:
    values = {
        "steps": 4,
        "seed": 3,
        "mode": MODES[mode],
        "batching": Batching(groups_per_step=2, group_size=2),
        "staleness": Staleness(alpha=ALPHA),
        "retry": Retry(backoff_s=0.01, backoff_max_s=0.02),
        "filter": Filter(drop_zero_variance=False),
    }
    return Rules(**{**values, **changes})


def batches(live: Live) -> list[Train]:
    return [
        command for _, commands in live.seen for command in commands if isinstance(command, Train)
    ]


def prove(live: Live) -> dict:
    """Replay the run's log; return what it counted, having checked what every run must hold."""
    proof = replay(live.directory)
    assert (proof["same_commands"], proof["lost"], proof["trained_twice"]) == (True, 0, 0)
    trained = [id_ for train in batches(live) for group in train.groups for id_ in group]
    assert proof["ended"].get("trained", 0) == len(trained) == len(set(trained))
    assert [t.id for batch in live.batches for group in batch for t in group] == trained
    promised = PROMISED.get(live.rules.mode.name)
    if promised is not None:
        assert proof["max_staleness"] <= promised
        assert proof["promised_staleness"] == (promised if batches(live) else None)
        for train, batch in zip(batches(live), live.batches, strict=True):
            assert all(
                train.version - t.born <= train.staleness <= promised
                for group in batch
                for t in group
            )
    return proof


@pytest.fixture(autouse=True)
def release_hung_threads():
    Hung.released.clear()
    yield
    Hung.released.set()


@pytest.mark.parametrize("kind", [Countdown, AsyncCountdown, InlineCountdown])
@pytest.mark.parametrize("mode", MODE_NAMES)
def test_every_mode_trains_to_its_last_step(mode, kind, tmp_path):
    live = Live(rules=rules(mode), directory=tmp_path, make=lambda _slot: kind()).run()
    proof = prove(live)
    assert [train.version for train in batches(live)] == [0, 1, 2, 3]
    assert [len(group) for train in batches(live) for group in train.groups] == [2] * 8
    assert proof["open"] == 0
    assert len(live.buffer) == 0
    assert live.controller.scheduler.served == 4


@pytest.mark.parametrize("mode", MODE_NAMES)
def test_hung_slow_and_crashing_environments_hold_no_mode_up(mode, tmp_path):
    made: Counter[int] = Counter()

    def make(slot: int):
        made[slot] += 1
        return {0: Hung(), 1: Slow(), 2: Crashing()}.get(slot) or Countdown()

    live = Live(
        rules=rules(mode),
        directory=tmp_path,
        make=make,
        slots=6,
        setup={"timeouts": Timeouts(reset_s=BOUND_S, step_s=0.3, episode_s=BOUND_S)},
    ).run()
    proof = prove(live)
    assert [train.version for train in batches(live)] == [0, 1, 2, 3]
    assert proof["ended"]["failed:env_error"] >= 1
    assert made[2] >= proof["ended"]["failed:env_error"]


def test_a_turn_keeps_its_tokens_across_an_update(tmp_path):
    engine = ScriptedEngine(lambda _request: (ord("x"),) * 60, tokens_per_step=1)

    class Waiting(AsyncCountdown):
        """Ends after a turn, or lives until there are other weights."""

        async def step(self, action):
            if self.turns > 1:
                await until(lambda: live.controller.scheduler.served)
            return await super().step(action)

    live = Live(
        rules=rules("areal", steps=6),
        directory=tmp_path,
        make=lambda slot: Waiting(turns=1 if slot < 6 else 3),
        engine=engine,
        setup={"limits": EpisodeLimits(max_turns=20, max_tokens=4096)},
        slots=12,
    )
    live.run()
    prove(live)
    versions = [
        {version for turn in t.turns for version in turn.versions}
        for batch in live.batches
        for group in batch
        for t in group
    ]
    assert max(len(each) for each in versions) > 1, "no trajectory lived through an update"


@pytest.mark.parametrize("mode", MODE_NAMES)
def test_surplus_work_is_cancelled_not_waited_for(mode, tmp_path):
    live = Live(
        rules=rules(mode, redundancy=Redundancy(extra_groups=1, extra_members=1)),
        directory=tmp_path,
        make=lambda slot: Slow() if slot % 3 == 0 else Countdown(),
        slots=9,
    ).run()
    proof = prove(live)
    assert len(batches(live)) == 4
    ended = [c for _, commands in live.seen for c in commands if isinstance(c, Cancel | Drop)]
    assert "surplus" in {command.reason for command in ended}
    assert proof["ended"].get("cancelled", 0) + proof["ended"].get("dropped:surplus", 0) >= 1


@pytest.mark.parametrize("mode", MODE_NAMES)
@pytest.mark.parametrize("steps", [0, 2])
def test_a_run_that_is_stopped_ends_in_order(mode, steps, tmp_path):
    def finished_steps() -> int:
        return sum(isinstance(event, StepFinished) for event, _ in live.seen)

    class Stopping(AsyncCountdown):
        """Stops the run in a turn that then lasts until it is cancelled."""

        async def step(self, action):
            if not stopping and finished_steps() >= steps:
                stopping.append(self)
                live.controller.stop()
                await asyncio.Event().wait()
            return await super().step(action)

    stopping: list[Stopping] = []
    live = Live(
        rules=rules(mode, steps=50),
        directory=tmp_path,
        make=lambda _slot: Stopping(turns=3),
        setup={"timeouts": Timeouts(reset_s=60.0, step_s=60.0, episode_s=60.0)},
    )
    live.run()
    proof = prove(live)
    events = [event for event, _ in live.seen]
    stopped = events.index(StopRequested())
    assert not any(
        isinstance(command, Launch | Train)
        for _, commands in live.seen[stopped:]
        for command in commands
    )
    assert steps <= len(batches(live)) == finished_steps()
    assert live.controller.scheduler.ending == "interrupted"
    assert proof["ended"]["cancelled"] >= 1
    assert len(live.buffer) == proof["open"]


@pytest.mark.parametrize("mode", MODE_NAMES)
def test_when_every_environment_fails_the_run_ends_with_the_last_reason(mode, tmp_path):
    live = Live(
        rules=rules(mode, retry=Retry(backoff_s=0.001, backoff_max_s=0.01, give_up_after=5)),
        directory=tmp_path,
        make=lambda _slot: Crashing(),
    )
    with pytest.raises(UserError) as caught:
        live.run()
    assert str(caught.value) == (f"5 attempts in a row failed; the last: env_error: {CRASHED}")
    failures = [event for event, _ in live.seen if isinstance(event, TrajectoryFailed)]
    assert len(failures) >= 5
    assert prove(live)["ended"].get("trained", 0) == 0


def test_a_failed_attempt_is_made_again_and_never_trained_on(tmp_path):
    class Flaky(Countdown):
        resets = 0

        def reset(self, seed, task):
            Flaky.resets += 1
            if Flaky.resets % 3 == 0:
                raise ConnectionError("lost the server")
            return super().reset(seed, task)

    live = Live(rules=rules(), directory=tmp_path, make=lambda _slot: Flaky()).run()
    prove(live)
    launches = [c for _, commands in live.seen for c in commands if isinstance(c, Launch)]
    failed = {event.id for event, _ in live.seen if isinstance(event, TrajectoryFailed)}
    assert failed
    assert any(launch.attempt > 0 for launch in launches)
    trained = {id_ for train in batches(live) for group in train.groups for id_ in group}
    assert not failed & trained


def test_rollout_goes_on_while_the_trainer_steps(tmp_path):
    def release(live, _event):
        finished = [event for event, _ in live.seen if isinstance(event, TrajectoryFinished)]
        if len(finished) > 4:
            HeldTrainer.released.set()

    HeldTrainer.version = 0
    HeldTrainer.released.clear()
    live = Live(
        rules=rules("rollart"),
        directory=tmp_path,
        make=lambda _slot: Countdown(),
        trainer="live_parts:HeldTrainer",
        watch=release,
    ).run()
    prove(live)
    kinds = [type(event).__name__ for event, _ in live.seen]
    during = kinds[kinds.index("TrajectoryFinished") : kinds.index("StepFinished")]
    assert during.count("TrajectoryFinished") > 4


@pytest.mark.parametrize("mode", ["sync", "rollart"])
def test_a_trainer_that_fails_ends_the_run_with_its_own_error(mode, tmp_path):
    live = Live(
        rules=rules(mode),
        directory=tmp_path,
        make=lambda slot: Hung() if slot == 0 else Countdown(),
        slots=8,
        trainer="live_parts:BrokenTrainer",
        setup={"timeouts": Timeouts(reset_s=BOUND_S, step_s=0.3, episode_s=BOUND_S)},
    )
    with pytest.raises(StorageError, match="the trainer's disk is full"):
        live.run()
    assert not Hung.released.is_set()
    assert replay(tmp_path)["same_commands"]


def test_a_reward_function_that_fails_is_not_a_reward(tmp_path):
    live = Live(rules=rules("sync"), directory=tmp_path, make=lambda _slot: Countdown())
    calls: list[int] = []

    def score(trajectory) -> float:
        calls.append(trajectory.id)
        if len(calls) % 5 == 0:
            raise ArithmeticError("the judge is away")
        return trajectory.reward

    live.score = score
    live.run()
    assert prove(live)["ended"]["dropped:score_failed"] >= 1
    assert len(batches(live)) == 4
