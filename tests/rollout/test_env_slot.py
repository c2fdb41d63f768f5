import asyncio
import contextlib
import json
import threading
import time

import pytest
from conditions import BOUND_S, until, wait_until
from live_parts import AsyncCountdown, Countdown, InlineCountdown

from rollart.rollout.env_contract import AttemptError
from rollart.rollout.env_slot import EnvSlot, close_all
from rollart.rollout.env_threads import EnvThreads
from rollart.types import Failure, StepOutcome

LONG_S = BOUND_S
SHORT_S = 0.05
"""The time limit of a call that does not return."""


async def opened(make, *, timeout_s: float = LONG_S) -> EnvSlot:
    slot = EnvSlot(3)
    await slot.open("game", make, timeout_s=timeout_s)
    return slot


def failure_of(make, *, hangs: str = "") -> Failure:
    """Return how an environment fails, having made sure the slot is fit for another one.

    `hangs` names the call that never returns.
    """

    async def run() -> Failure:
        slot = EnvSlot(3)
        limits_s = dict.fromkeys(("opening it", "reset", "step"), LONG_S) | {hangs: SHORT_S}
        with pytest.raises(AttemptError) as caught:
            await slot.open("game", make, timeout_s=limits_s["opening it"])
            await slot.reset(1, {}, timeout_s=limits_s["reset"])
            await slot.step("go", timeout_s=limits_s["step"])
        await slot.open("game", lambda _slot: Countdown(), timeout_s=LONG_S)
        assert await slot.reset(1, {}, timeout_s=LONG_S) == ("2 left", {})
        slot.close()
        return caught.value.failure

    return asyncio.run(run())


@pytest.mark.parametrize("kind", [Countdown, AsyncCountdown, InlineCountdown])
def test_an_environment_is_played_whatever_its_kind(kind):
    async def run():
        slot = await opened(lambda _slot: kind())
        first = await slot.reset(7, {"split": "train"}, timeout_s=LONG_S)
        outcomes = [await slot.step("go", timeout_s=LONG_S) for _ in range(2)]
        slot.close()
        return first, outcomes

    assert asyncio.run(run()) == (
        ("2 left", {}),
        [
            StepOutcome(observation="1 left", reward=1.0, terminated=False, truncated=False),
            StepOutcome(observation="0 left", reward=1.0, terminated=True, truncated=False),
        ],
    )


def test_a_plain_method_may_return_an_awaitable():
    class Wrapped:
        def __init__(self) -> None:
            self.inner = AsyncCountdown()

        def reset(self, seed, task):
            return self.inner.reset(seed, task)

        def step(self, action):
            return self.inner.step(action)

    async def run():
        slot = await opened(lambda _slot: Wrapped())
        first = await slot.reset(7, {}, timeout_s=LONG_S)
        return first, (await slot.step("go", timeout_s=LONG_S)).observation

    assert asyncio.run(run()) == (("2 left", {}), "1 left")


def test_what_info_says_of_success_is_the_outcomes():
    class Won(Countdown):
        def step(self, action):
            return "over", 0.0, True, False, {"success": True}

    async def run():
        slot = await opened(lambda _slot: Won())
        await slot.reset(1, {}, timeout_s=LONG_S)
        return (await slot.step("go", timeout_s=LONG_S)).success

    assert asyncio.run(run()) is True


def test_a_fit_environment_is_kept_and_told_its_slot():
    made: list[int] = []

    def make(slot: int):
        made.append(slot)
        return Countdown()

    async def run():
        slot = await opened(make)
        for _ in range(3):
            await slot.open("game", make, timeout_s=LONG_S)

    asyncio.run(run())
    assert made == [3]


def test_a_synchronous_environment_runs_in_one_thread_that_is_not_the_loops():
    class Where(Countdown):
        def __init__(self):
            super().__init__()
            self.threads = {threading.get_ident()}

        def step(self, action):
            self.threads.add(threading.get_ident())
            return super().step(action)

    env = []

    def make(_slot):
        env.append(Where())
        return env[0]

    async def run():
        slot = await opened(make)
        await slot.reset(1, {}, timeout_s=LONG_S)
        await slot.step("go", timeout_s=LONG_S)

    asyncio.run(run())
    assert len(env[0].threads) == 1
    assert threading.get_ident() not in env[0].threads


@pytest.mark.parametrize(
    ("kind", "kept"), [(InlineCountdown, 0), (AsyncCountdown, 0), (Countdown, 40)]
)
def test_only_synchronous_environments_keep_a_thread(kind, kept, monkeypatch):
    if not kept:  # more shared ones would start if the machine were too busy to serve calls by then
        monkeypatch.setattr("rollart.rollout.env_threads._GROW_S", LONG_S)

    async def run():
        before = set(threading.enumerate())
        threads = EnvThreads()
        slots = [EnvSlot(number, threads=threads) for number in range(40)]
        await asyncio.gather(
            *[slot.open("game", lambda _slot: kind(), timeout_s=LONG_S) for slot in slots]
        )
        for slot in slots:
            await slot.reset(1, {}, timeout_s=LONG_S)
        started = [each for each in threading.enumerate() if each not in before]
        await close_all(slots)
        return sum(each.name == "env" for each in started)

    count = asyncio.run(run())
    assert count >= kept if kept else count <= 1


def test_one_that_hangs_while_it_is_made_holds_up_no_other_slot():
    release = threading.Event()

    async def run():
        threads = EnvThreads()
        hung, other = EnvSlot(0, threads=threads), EnvSlot(1, threads=threads)
        opening = asyncio.create_task(
            hung.open("game", lambda _slot: release.wait(2 * LONG_S), timeout_s=2 * LONG_S)
        )
        await asyncio.sleep(0)
        await other.open("game", lambda _slot: Countdown(), timeout_s=LONG_S)
        assert not opening.done()
        opening.cancel()
        await asyncio.wait({opening})
        other.close()

    try:
        asyncio.run(run())
    finally:
        release.set()


def test_a_thread_that_hangs_is_left_behind_and_never_awaited():
    release = threading.Event()

    class Hung(Countdown):
        def step(self, action):
            release.wait()
            return super().step(action)

    class HungReset(Countdown):
        def reset(self, seed, task):
            release.wait()
            return super().reset(seed, task)

    def hung_opening(_slot):
        release.wait()

    expected = "game: {} took more than 0.05 s (tasks.game.{}_timeout_s)"
    try:
        for make, what, limit in (
            (lambda _slot: Hung(), "step", "step"),
            (lambda _slot: HungReset(), "reset", "reset"),
            (hung_opening, "opening it", "reset"),
        ):
            assert failure_of(make, hangs=what) == Failure(
                kind="env_timeout", message=expected.format(what, limit)
            )
        assert not release.is_set()
    finally:
        release.set()


def test_a_coroutine_that_swallows_its_cancellation_is_left_behind():
    release = threading.Event()

    class Deaf(Countdown):
        async def step(self, action):
            while not release.is_set():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(0.01)
            return super().step(action)

    try:
        failure = failure_of(lambda _slot: Deaf(), hangs="step")
    finally:
        release.set()
    message = "game: step took more than 0.05 s (tasks.game.step_timeout_s)"
    assert failure == Failure(kind="env_timeout", message=message)


def test_an_answer_that_comes_too_late_is_not_taken_for_the_next_one():
    release, closed = threading.Event(), threading.Event()

    class Late(Countdown):
        def step(self, action):
            release.wait()
            return "late", 9.0, True, False, {}

        def close(self):
            closed.set()

    async def run():
        slot = await opened(lambda _slot: Late())
        await slot.reset(1, {}, timeout_s=LONG_S)
        with pytest.raises(AttemptError):
            await slot.step("go", timeout_s=SHORT_S)
        await slot.open("game", lambda _slot: Countdown(), timeout_s=LONG_S)
        await slot.reset(1, {}, timeout_s=LONG_S)
        release.set()
        await until(closed.is_set)  # its thread has answered
        return (await slot.step("go", timeout_s=LONG_S)).observation

    assert asyncio.run(run()) == "1 left"


@pytest.mark.parametrize("kind", [Countdown, AsyncCountdown, InlineCountdown])
@pytest.mark.parametrize(
    "error",
    [
        ValueError("no"),
        TimeoutError("the server is slow"),
        StopIteration("the data ran out"),
        SystemExit("bye"),
        asyncio.CancelledError("a scope inside ended"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_an_environment_raises_is_a_failure_with_its_words(kind, error):
    if kind is AsyncCountdown:

        class Raising(kind):
            async def step(self, action):
                raise type(error)(*error.args)
    else:

        class Raising(kind):
            def step(self, action):
                raise type(error)(*error.args)

    failure = failure_of(lambda _slot: Raising())
    assert failure.kind == "env_error"
    assert failure.message.startswith("game: step raised ")
    if not isinstance(error, TimeoutError | StopIteration | asyncio.CancelledError):
        line = Raising.step.__code__.co_firstlineno + 1
        raised = f"{type(error).__name__}: {error}"
        assert failure.message == f"game: step raised {raised} (test_env_slot.py:{line})"


def test_an_environment_that_cannot_be_made_is_a_failure():
    def make(_slot):
        raise OSError("no display")

    where = f"(test_env_slot.py:{make.__code__.co_firstlineno + 1})"
    assert failure_of(make) == Failure(
        kind="env_error", message=f"game: opening it raised OSError: no display {where}"
    )


def test_the_line_named_is_the_environments_own_however_deep_the_error_lies():
    class Parsing(Countdown):
        def step(self, action):
            return json.loads("no json")

    line = Parsing.step.__code__.co_firstlineno + 1
    assert failure_of(lambda _slot: Parsing()).message.endswith(f"(test_env_slot.py:{line})")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((42, {}), "the observation was int 42"),
        ("hello", "it returned str 'hello'"),
        (("hello", {}, 1), "it returned a tuple of 3"),
        (("hello", None), "the info was NoneType None"),
    ],
)
def test_a_reset_that_breaks_the_contract_is_told_apart(answer, words):
    class Rubbish(Countdown):
        def reset(self, seed, task):
            return answer

    failure = failure_of(lambda _slot: Rubbish())
    assert failure.kind == "env_contract"
    assert failure.message.startswith("game: reset() must return (observation: str, info: dict)")
    assert words in failure.message


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((None, 0.0, False, False, {}), "the observation was NoneType None"),
        (("x", float("nan"), False, False, {}), "must return a finite reward; it was float nan"),
        (("x", float("inf"), False, False, {}), "must return a finite reward; it was float inf"),
        (("x", "1", False, False, {}), "the reward was str '1'"),
        (("x", 0.0, False, {}), "it returned a tuple of 4"),
        (("x", 0.0, "no", False, {}), "terminated was str 'no'"),
        (None, "it returned NoneType None"),
    ],
)
def test_a_step_that_breaks_the_contract_is_told_apart(answer, words):
    class Rubbish(Countdown):
        def step(self, action):
            return answer

    failure = failure_of(lambda _slot: Rubbish())
    assert failure.kind == "env_contract"
    assert words in failure.message


def test_a_cancelled_call_leaves_the_environment_behind():
    begun, release = threading.Event(), threading.Event()

    class Hung(Countdown):
        def step(self, action):
            begun.set()
            release.wait()

    class HungAsync(Countdown):
        async def step(self, action):
            begun.set()
            await asyncio.Event().wait()

    async def run(kind):
        slot = await opened(lambda _slot: kind())
        await slot.reset(1, {}, timeout_s=LONG_S)
        begun.clear()
        call = asyncio.create_task(slot.step("go", timeout_s=LONG_S))
        await until(begun.is_set)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await slot.open("game", lambda _slot: Countdown(), timeout_s=LONG_S)
        return await slot.reset(1, {}, timeout_s=LONG_S)

    assert asyncio.run(run(Hung)) == ("2 left", {})
    assert asyncio.run(run(HungAsync)) == ("2 left", {})
    release.set()


def closing(closed: threading.Event, *, asynchronous: bool = False):
    class Closing(Countdown):
        def close(self):
            closed.set()

    class AsyncClosing(Countdown):
        async def close(self):
            closed.set()

    return AsyncClosing() if asynchronous else Closing()


@pytest.mark.parametrize("asynchronous", [False, True])
def test_closing_a_seat_closes_its_environment(asynchronous):
    closed = threading.Event()

    async def run():
        slot = await opened(lambda _slot: closing(closed, asynchronous=asynchronous))
        await close_all([slot])

    asyncio.run(run())
    assert closed.is_set()


def test_an_environment_that_gives_way_to_another_kind_is_closed():
    closed = threading.Event()

    async def run():
        slot = await opened(lambda _slot: closing(closed))
        await slot.open("another", lambda _slot: Countdown(), timeout_s=LONG_S)

    asyncio.run(run())
    assert closed.wait(LONG_S)


@pytest.mark.parametrize("fault", ["raises", "breaks the contract", "hangs for a while"])
def test_an_environment_that_fails_is_closed_too(fault):
    closed, release = threading.Event(), threading.Event()

    class Failing(Countdown):
        def step(self, action):
            if fault == "raises":
                raise OSError("lost")
            if fault == "hangs for a while":
                release.wait()
            return "rubbish"

        def close(self):
            closed.set()

    async def run():
        slot = await opened(lambda _slot: Failing())
        await slot.reset(1, {}, timeout_s=LONG_S)
        with pytest.raises(AttemptError):
            await slot.step("go", timeout_s=SHORT_S if "hangs" in fault else LONG_S)
        assert not closed.is_set() or fault != "hangs for a while"
        release.set()

    asyncio.run(run())
    assert closed.wait(LONG_S)


def test_a_close_that_raises_is_told_once_and_stops_nothing():
    class Stubborn(Countdown):
        def close(self):
            raise OSError("cannot close")

    class StubbornAsync(Countdown):
        async def close(self):
            raise OSError("cannot close")

    async def run(kind):
        threads, told = EnvThreads(), list[str]()
        threads.listen(told.append)
        seats = [EnvSlot(number, threads=threads) for number in range(2)]
        for slot in seats:
            await slot.open("game", lambda _slot: kind(), timeout_s=LONG_S)
        EnvSlot(0).close()
        await close_all(seats)
        return told

    for kind in (Stubborn, StubbornAsync):
        [told] = asyncio.run(run(kind))
        assert told.startswith("game: close raised OSError: cannot close (test_env_slot.py:")


def test_a_close_that_raises_is_told_of_its_own_task():
    class Stubborn(Countdown):
        def close(self):
            raise OSError("cannot close")

    async def run():
        threads, told = EnvThreads(), list[str]()
        threads.listen(told.append)
        slot = EnvSlot(0, threads=threads)
        await slot.open("first", lambda _slot: Stubborn(), timeout_s=LONG_S)
        await slot.open("second", lambda _slot: Countdown(), timeout_s=LONG_S)
        await close_all([slot])
        return told

    [told] = asyncio.run(run())
    assert told.startswith("first: close raised")


def test_an_error_whose_text_cannot_be_had_is_a_failure_like_others():
    class MuteError(Exception):
        def __str__(self):
            raise AttributeError("text")

    class Failing(Countdown):
        def step(self, action):
            raise MuteError

    failure = failure_of(lambda _slot: Failing())
    assert failure.kind == "env_error"
    assert failure.message.startswith("game: step raised MuteError: its text cannot be read (")


def test_an_asynchronous_close_waits_for_the_thread_of_its_environment():
    order, release = list[str](), threading.Event()

    class Mixed(Countdown):
        def step(self, action):
            release.wait()
            order.append("stepped")

        async def close(self):
            order.append("closed")

    async def run():
        slot = await opened(lambda _slot: Mixed())
        with pytest.raises(AttemptError):
            await slot.step("go", timeout_s=SHORT_S)
        release.set()
        await until(lambda: "closed" in order)

    asyncio.run(run())
    assert order == ["stepped", "closed"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_environments_have_a_while_to_close_when_a_run_ends(asynchronous):
    closed = []

    class Slow(Countdown):
        def close(self):
            time.sleep(0.05)
            closed.append(True)

    class SlowAsync(Countdown):
        async def close(self):
            await asyncio.sleep(0.05)
            closed.append(True)

    async def run():
        make = SlowAsync if asynchronous else Slow
        seats = [await opened(lambda _slot: make()) for _ in range(3)]
        seats[0].close()
        await close_all(seats, grace_s=LONG_S)
        return len(closed)

    assert asyncio.run(run()) == 3


def test_the_end_of_a_run_waits_neither_for_what_hangs_nor_for_ever():
    release = threading.Event()

    class Hung(Countdown):
        def step(self, action):
            release.wait()
            raise AssertionError

        def close(self):
            raise AssertionError("its step never ended")

    class NeverCloses(Countdown):
        def close(self):
            release.wait()

    async def run():
        hung, never = await opened(lambda _slot: Hung()), await opened(lambda _slot: NeverCloses())
        await hung.reset(1, {}, timeout_s=LONG_S)
        with pytest.raises(AttemptError):
            await hung.step("go", timeout_s=SHORT_S)
        await asyncio.wait_for(close_all([hung], grace_s=LONG_S), LONG_S / 2)
        await asyncio.wait_for(close_all([never], grace_s=SHORT_S), LONG_S / 2)

    asyncio.run(run())


@pytest.mark.parametrize("way", ["times out", "is cancelled"])
def test_an_environment_that_is_made_too_late_is_closed(way):
    begun, closed, release = (threading.Event() for _ in range(3))

    def make(_slot):
        begun.set()
        release.wait()
        return closing(closed)

    async def run():
        slot = EnvSlot(0)
        if way == "times out":
            with pytest.raises(AttemptError, match="opening it took more than"):
                await slot.open("game", make, timeout_s=SHORT_S)
        else:
            opening = asyncio.create_task(slot.open("game", make, timeout_s=LONG_S))
            await until(begun.is_set)
            opening.cancel()
            await asyncio.wait({opening})
        release.set()
        await asyncio.to_thread(closed.wait, LONG_S)

    asyncio.run(run())
    assert closed.is_set()


def test_an_environment_that_is_made_in_the_moment_of_a_cancel_is_closed():
    closed = threading.Event()

    async def run():
        loop = asyncio.get_running_loop()
        opening = asyncio.create_task(
            EnvSlot(0).open("game", lambda _slot: closing(closed), timeout_s=LONG_S)
        )
        await asyncio.sleep(0)
        wait_until(lambda: loop._ready)  # the thread has answered; the answer waits for the loop
        loop.call_soon(opening.cancel)
        await asyncio.wait({opening})
        await asyncio.to_thread(closed.wait, LONG_S)

    asyncio.run(run())
    assert closed.is_set()


def test_a_close_that_is_a_wrapped_coroutine_is_awaited():
    closed = threading.Event()

    class Wrapped(Countdown):
        def close(self):
            return self._close()

        async def _close(self):
            closed.set()

    async def run():
        await close_all([await opened(lambda _slot: Wrapped())])

    asyncio.run(run())
    assert closed.is_set()
