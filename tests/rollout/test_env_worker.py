"""EnvWorker and EnvManager over a real proxy: every launch is answered exactly once."""

import asyncio
import threading

import pytest
from live_parts import (
    CRASHED,
    ENGINE,
    AsyncCountdown,
    Countdown,
    Crashing,
    Hung,
    InlineCountdown,
    make_access,
    make_setup,
    make_task,
    running_proxy,
    say,
)

from rollart.events import (
    Launch,
    TrajectoryBorn,
    TrajectoryCancelled,
    TrajectoryFailed,
    TrajectoryFinished,
)
from rollart.inference.scripted import ScriptedEngine
from rollart.rollout.barrier import LockStepBarrier
from rollart.rollout.env_manager import Unread
from rollart.rollout.env_slot import Timeouts
from rollart.rollout.env_worker import Ends, EnvWorker
from rollart.types import (
    EpisodeLimits,
    Failure,
    GroupId,
    SlotId,
    Task,
    Trajectory,
    TrajectoryId,
    TrajectoryInfo,
    Turn,
    Version,
    token_trajectory,
)

ID = TrajectoryId(11)


def launch(id_: int = 11, *, task: int = 1, slot: int = 0) -> Launch:
    return Launch(
        id=TrajectoryId(id_),
        group=GroupId(5),
        member=0,
        attempt=0,
        task=task,
        slot=SlotId(slot),
        seed=9,
    )


class Harness:
    """One worker, what it posted and what it put."""

    def __init__(self, proxy, make, *, gate=None, is_fresh=lambda _v: True, **setup) -> None:
        self.events: list[object] = []
        self.records: list[Trajectory] = []
        self.access = make_access({ENGINE: proxy}, gate=gate, is_fresh=is_fresh)
        self.worker = EnvWorker(
            setups={"countdown": make_setup(make, **setup)},
            access=self.access,
            tasks=make_task,
            ends=Ends(put=self.records.append, post=self.post),
        )

    def post(self, event) -> None:
        self.events.append(event)
        self.worker.settle(event)


def outcome(make, *, engine=None, cancel_when=None, launches=None, **options) -> Harness:
    """Run launches to their end, cancelling them when told."""

    async def run() -> Harness:
        async with running_proxy(engine) as proxy, asyncio.timeout(60):
            harness = Harness(proxy, make, **options)
            mine = launches or [launch()]
            async with asyncio.TaskGroup() as tasks:
                harness.worker.launch(mine, tasks)
                if cancel_when is not None:
                    while not cancel_when(harness):
                        await asyncio.sleep(0.001)
                    for each in mine:
                        harness.worker.cancel(each.id)
                        harness.worker.cancel(each.id)
            assert proxy.in_flight == 0
            harness.access.engines.router.check()
            await harness.worker.close()
            harness.worker.cancel(ID)
            return harness

    return asyncio.run(run())


def finished(id_: TrajectoryId = ID) -> TrajectoryFinished:
    return TrajectoryFinished(
        info=TrajectoryInfo(
            id=id_,
            born=Version(0),
            reward=2.0,
            success=True,
            turns=2,
            cost=6,
            stop="terminated",
            served={ENGINE: 2},
        )
    )


@pytest.mark.parametrize("kind", [Countdown, AsyncCountdown, InlineCountdown])
def test_an_attempt_is_born_then_finished_and_its_record_is_put_first(kind):
    harness = outcome(lambda _slot: kind())
    assert harness.events == [TrajectoryBorn(id=ID, version=Version(0)), finished()]
    go = (ord("g"), ord("o"), 0)
    assert harness.records == [
        token_trajectory(
            id=ID,
            group=GroupId(5),
            task=Task(id=1, env="countdown", domain="games", seed=1),
            turns=tuple(
                Turn(
                    prompt_tokens=tuple(ord(each) for each in prompt),
                    tokens=go,
                    logprobs=(0.0,) * 3,
                    versions=(Version(0),) * 3,
                    observation=observation,
                    action="go",
                    reward=1.0,
                )
                for prompt, observation in (("count|2 left>", "2 left"), ("1 left>", "1 left"))
            ),
            stop="terminated",
            success=True,
            reward=2.0,
        )
    ]


def test_a_reward_that_is_scored_elsewhere_is_left_out():
    async def run():
        async with running_proxy() as proxy:
            harness = Harness(proxy, lambda _slot: Countdown())
            worker = EnvWorker(
                setups={"countdown": make_setup(lambda _slot: Countdown())},
                access=harness.access,
                tasks=make_task,
                ends=Ends(put=harness.records.append, post=harness.events.append),
                score_elsewhere=True,
            )
            async with asyncio.TaskGroup() as tasks:
                worker.launch([launch()], tasks)
            return harness.events[-1].info.reward, harness.records[0].reward

    assert asyncio.run(run()) == (None, 2.0)


def test_a_crash_is_a_failure_with_the_tokens_it_cost():
    harness = outcome(lambda _slot: Crashing())
    assert harness.events == [
        TrajectoryBorn(id=ID, version=Version(0)),
        TrajectoryFailed(
            id=ID, failure=Failure(kind="env_error", message=CRASHED), cost=3, turns=1
        ),
    ]
    assert harness.records == []


def test_a_crash_before_the_first_token_has_no_birth():
    class Unopened(Countdown):
        def reset(self, seed, task):
            raise ValueError("no map")

    harness = outcome(lambda _slot: Unopened())
    line = Unopened.reset.__code__.co_firstlineno + 1
    message = f"countdown: reset raised ValueError: no map (test_env_worker.py:{line})"
    failure = Failure(kind="env_error", message=message)
    assert harness.events == [TrajectoryFailed(id=ID, failure=failure, cost=0)]


def fails_to_parse(_text: str) -> str:
    raise KeyError("action")


def test_a_text_that_the_parser_cannot_read_is_a_turn_and_the_policy_reads_why():
    texts = iter([fails_to_parse, str, str])
    harness = outcome(
        lambda _slot: Countdown(),
        parse=lambda text: (next(texts))(text),  # noqa: PLW0108
        unread=Unread(reward=-0.5),
        limits=EpisodeLimits(max_turns=5, max_tokens=500),
    )
    info = harness.events[-1].info
    assert (info.reward, info.turns, info.stop, info.unread) == (1.5, 3, "terminated", 1)
    assert harness.records[0].turns[1].observation == (
        "Your answer could not be read: the parser raised KeyError: 'action'."
    )


def test_a_text_that_the_parser_cannot_read_may_end_the_episode():
    unread = Unread(then="end", reward=-1.0)
    harness = outcome(lambda _slot: Countdown(), parse=fails_to_parse, unread=unread)
    info = harness.events[-1].info
    assert (info.reward, info.turns, info.stop, info.success) == (-1.0, 1, "terminated", False)


def test_a_parser_that_returns_no_text_is_a_failure_of_its_own_kind():
    harness = outcome(lambda _slot: Countdown(), parse=len)
    message = "countdown: the parser must return a str; on 'go' it returned 2"
    failure = Failure(kind="parser", message=message)
    assert harness.events == [
        TrajectoryBorn(id=ID, version=0),
        TrajectoryFailed(id=ID, failure=failure, cost=3, turns=1),
    ]


def test_a_parser_that_never_answers_ends_its_own_episode_alone():
    timeouts = Timeouts(reset_s=60.0, step_s=0.1, episode_s=60.0)
    harness = outcome(lambda _slot: Countdown(), parse=hangs_on, timeouts=timeouts)
    info = harness.events[-1].info
    assert (info.reward, info.turns, info.success, info.unread) == (0.0, 1, False, 1)


def hangs_on(_text: str) -> str:
    threading.Event().wait()
    raise AssertionError("nobody sets it")


def test_an_observation_too_long_for_the_episode_names_the_limit():
    harness = outcome(lambda _slot: Countdown(), limits=EpisodeLimits(max_turns=2, max_tokens=5))
    [event] = harness.events
    assert event.failure.kind == "env_contract"
    assert "raise tasks.countdown.max_tokens" in event.failure.message


def test_an_episode_out_of_time_ends_truncated_with_what_it_earned():
    class Slow(Countdown):
        async def step(self, action):
            await asyncio.sleep(0.05)
            return super().step(action)

    timeouts = Timeouts(reset_s=60.0, step_s=60.0, episode_s=0.04)
    harness = outcome(lambda _slot: Slow(), timeouts=timeouts)
    info = harness.events[-1].info
    assert (info.reward, info.turns, info.stop, info.success) == (1.0, 1, "time_limit", False)
    assert len(harness.records[0].turns) == 1


def test_an_episode_whose_environment_hangs_is_given_up():
    timeouts = Timeouts(reset_s=60.0, step_s=60.0, episode_s=1.0)
    harness = outcome(lambda _slot: Hung(), timeouts=timeouts)
    message = "countdown: the episode took more than twice its limit of 1 s"
    assert harness.events == [
        TrajectoryBorn(id=ID, version=Version(0)),
        TrajectoryFailed(
            id=ID, failure=Failure(kind="episode_timeout", message=message), cost=3, turns=1
        ),
    ]


def test_a_hung_environment_frees_its_slot_for_the_next_attempt():
    made: list[Countdown] = []

    def make(_slot):
        made.append(Hung() if not made else Countdown())
        return made[-1]

    timeouts = Timeouts(reset_s=60.0, step_s=1.0, episode_s=60.0)

    async def run():
        async with running_proxy() as proxy, asyncio.timeout(60):
            harness = Harness(proxy, make, timeouts=timeouts)
            for id_ in (11, 12):
                async with asyncio.TaskGroup() as tasks:
                    harness.worker.launch([launch(id_)], tasks)
            return harness.events

    events = asyncio.run(run())
    assert [type(event) for event in events] == [
        TrajectoryBorn,
        TrajectoryFailed,
        TrajectoryBorn,
        TrajectoryFinished,
    ]
    assert events[1].failure.kind == "env_timeout"


def test_a_cancel_stops_an_attempt_whatever_its_environment_does():
    started = threading.Event()

    class Waiting(Hung):
        def step(self, action):
            started.set()
            return super().step(action)

    harness = outcome(lambda _slot: Waiting(), cancel_when=lambda _harness: started.is_set())
    assert harness.events == [
        TrajectoryBorn(id=ID, version=Version(0)),
        TrajectoryCancelled(id=ID, cost=3, turns=1),
    ]


def test_a_cancel_in_the_middle_of_a_turn_aborts_the_request():
    engine = ScriptedEngine(lambda _request: (7,) * 8, rows=0)
    harness = outcome(
        lambda _slot: InlineCountdown(),
        engine=engine,
        cancel_when=lambda harness: engine.stats()["steps"] > 0,
    )
    assert harness.events == [TrajectoryCancelled(id=ID, cost=0)]


def test_an_attempt_cancelled_before_it_began_is_answered_too():
    async def run():
        async with running_proxy() as proxy, asyncio.timeout(60):
            gate = LockStepBarrier()
            harness = Harness(proxy, lambda _slot: InlineCountdown(), gate=gate)
            async with asyncio.TaskGroup() as tasks:
                harness.worker.launch([launch(11), launch(12, slot=1)], tasks)
                harness.worker.cancel(TrajectoryId(11))
            return harness.events

    events = asyncio.run(run())
    assert events[0] == TrajectoryCancelled(id=ID, cost=0)
    assert events[1:] == [
        TrajectoryBorn(id=TrajectoryId(12), version=Version(0)),
        finished(TrajectoryId(12)),
    ]


def test_an_attempt_too_old_to_train_on_waits_for_its_cancel():
    class Seen(InlineCountdown):
        steps = 0

        def step(self, action):
            Seen.steps += 1
            return super().step(action)

    harness = outcome(
        lambda _slot: Seen(turns=5),
        is_fresh=lambda _version: Seen.steps < 2,
        cancel_when=lambda _harness: Seen.steps == 2,
    )
    assert harness.events[0] == TrajectoryBorn(id=ID, version=Version(0))
    assert isinstance(harness.events[1], TrajectoryCancelled)
    assert Seen.steps == 2


def test_sessions_that_end_are_forgotten_by_the_engine():
    engine = ScriptedEngine(say("go"))
    launches = [launch(id_, slot=id_) for id_ in range(8)]
    harness = outcome(lambda _slot: Countdown(), engine=engine, launches=launches)
    ends = [event for event in harness.events if isinstance(event, TrajectoryFinished)]
    assert sorted(end.info.id for end in ends) == list(range(8))
    assert engine.stats()["reused_tokens"] > 0
    assert harness.access.engines.router.forget(ID) is None


def test_lock_step_episodes_that_fail_or_end_early_hold_nobody_up():
    def make(slot: int):
        return {0: Crashing(), 1: Countdown(turns=1)}.get(slot) or Countdown(turns=4)

    launches = [launch(id_, slot=id_) for id_ in range(4)]
    harness = outcome(make, gate=LockStepBarrier(), launches=launches)
    ends = {type(event).__name__ for event in harness.events[-1:]}
    assert ends == {"TrajectoryFinished"}
    kinds = [type(event) for event in harness.events]
    counts = [kinds.count(each) for each in (TrajectoryFailed, TrajectoryFinished)]
    assert counts == [1, 3]


@pytest.fixture(autouse=True)
def release_hung_threads():
    Hung.released.clear()
    yield
    Hung.released.set()
