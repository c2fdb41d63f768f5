import asyncio
import gc
import inspect
import sys
import threading
from collections.abc import Callable

import pytest
from conditions import BOUND_S, until, wait_until
from live_parts import AsyncCountdown

from rollart.rollout.env_contract import AttemptError
from rollart.rollout.env_slot import EnvSlot, close_all
from rollart.rollout.env_threads import _LINGER_S, EnvThreads, LoopThread

LONG_S = 10 * BOUND_S
SHORT_S = 0.01
"""The time limit of a call that does not return."""
BLOCKED = "game: step blocked its event loop instead of awaiting"
HELD_UP = "game: step: another environment blocked their event loop"


class Blocking(AsyncCountdown):
    """Blocks its loop where it should await."""

    def __init__(self, release: threading.Event) -> None:
        super().__init__()
        self._release = release
        self._begun = threading.Event()

    async def step(self, action):
        self.block()
        return await super().step(action)

    def block(self) -> None:
        self._begun.set()
        self._release.wait(LONG_S)

    @property
    def is_blocking(self) -> bool:
        return self._begun.is_set() and not self._release.is_set()


@pytest.fixture(autouse=True)
def _never_blocked(monkeypatch):
    """Take no loop for blocked that is only slow."""
    monkeypatch.setattr("rollart.rollout.env_threads._STILL_S", BOUND_S)


@pytest.fixture
def soon_blocked(monkeypatch):
    """Know soon that a loop is blocked."""
    monkeypatch.setattr("rollart.rollout.env_threads._STILL_S", 0.1)


@pytest.fixture
def release(soon_blocked):
    event = threading.Event()
    yield event
    event.set()


async def opened(make, threads: EnvThreads) -> EnvSlot:
    slot = EnvSlot(0, threads=threads)
    await slot.open("game", make, timeout_s=LONG_S)
    await slot.reset(1, {}, timeout_s=LONG_S)
    return slot


async def fate(call) -> tuple[str, str]:
    with pytest.raises(AttemptError) as caught:
        await call
    return caught.value.failure.kind, caught.value.failure.message


async def begun(call) -> "asyncio.Task[tuple[str, str]]":
    """Begin a call that will fail."""
    task = asyncio.create_task(fate(call))
    await asyncio.sleep(0)
    return task


def await_block(threads: EnvThreads, env: Blocking) -> None:
    """Return when a loop counts as blocked; no time limit ends a call of this loop before."""
    home = threads.loop
    wait_until(lambda: env.is_blocking and home.is_blocked)


def loop_threads() -> int:
    return sum(each.name == "async-envs" for each in threading.enumerate())


def test_one_that_blocks_fails_and_those_it_holds_up_are_made_again_uncounted(release):
    threads, warnings = EnvThreads(), list[str]()
    threads.listen(warnings.append)

    async def run():
        env = Blocking(release)
        blocking = await opened(lambda _slot: env, threads)
        waiting = await opened(lambda _slot: AsyncCountdown(), threads)
        thinking = await opened(lambda _slot: AsyncCountdown(), threads)
        blocked = asyncio.create_task(fate(blocking.step("go", timeout_s=SHORT_S)))
        held_up = await begun(waiting.step("go", timeout_s=LONG_S))
        await_block(threads, env)
        fates = [await blocked, await held_up, await fate(thinking.step("go", timeout_s=LONG_S))]
        await waiting.open("game", lambda _slot: AsyncCountdown(), timeout_s=LONG_S)
        again = await waiting.reset(1, {}, timeout_s=LONG_S)
        assert env.is_blocking
        return fates, again[0]

    fates, again = asyncio.run(run())
    assert fates == [("env_timeout", BLOCKED), ("worker", HELD_UP), ("worker", HELD_UP)]
    assert again == "2 left"
    [warning] = warnings
    assert warning.startswith("game: step blocks its event loop")


def test_many_whose_time_is_up_at_once_leave_one_to_blame(release):
    threads = EnvThreads()

    async def run():
        env = Blocking(release)
        blocking = await opened(lambda _slot: env, threads)
        others = [await opened(lambda _slot: AsyncCountdown(), threads) for _ in range(5)]
        fates = asyncio.gather(
            *[fate(slot.step("go", timeout_s=SHORT_S)) for slot in (blocking, *others)]
        )
        await asyncio.sleep(0)
        await_block(threads, env)
        return await fates

    kinds = sorted(kind for kind, _ in asyncio.run(run()))
    assert kinds == ["env_timeout", *["worker"] * 5]


def test_a_pause_within_the_time_of_a_call_costs_nothing(soon_blocked):
    threads = EnvThreads()

    class Pausing(AsyncCountdown):
        async def step(self, action):
            wait_until(lambda: threads.loop.is_blocked)
            return await super().step(action)

    async def run():
        slot = await opened(lambda _slot: Pausing(), threads)
        other = await opened(lambda _slot: AsyncCountdown(), threads)
        outcomes = await asyncio.gather(
            slot.step("go", timeout_s=LONG_S), other.step("go", timeout_s=LONG_S)
        )
        return [outcome.observation for outcome in outcomes]

    assert asyncio.run(run()) == ["1 left", "1 left"]


def test_one_that_hangs_without_blocking_holds_up_nobody():
    threads = EnvThreads()

    class Hung(AsyncCountdown):
        async def step(self, action):
            await asyncio.Event().wait()

    async def run():
        hung = await opened(lambda _slot: Hung(), threads)
        other = await opened(lambda _slot: AsyncCountdown(), threads)
        kind, _ = await fate(hung.step("go", timeout_s=SHORT_S))
        return kind, (await other.step("go", timeout_s=LONG_S)).observation

    assert asyncio.run(run()) == ("env_timeout", "1 left")


def test_a_call_is_cancelled_before_its_environment_closes_and_has_time_to_clean_up(monkeypatch):
    monkeypatch.setattr("rollart.rollout.env_slot._SETTLING_S", BOUND_S)
    threads, order, stepping = EnvThreads(), list[str](), threading.Event()

    class Careful(AsyncCountdown):
        async def step(self, action):
            try:
                stepping.set()
                await asyncio.Event().wait()
            finally:
                order.append("cancelled")
                await until(lambda: "closed" in order)
                await asyncio.sleep(0.05)
                order.append("clean")

        async def close(self):
            order.append("closed")

    async def run():
        slot = await opened(lambda _slot: Careful(), threads)
        stepped = await begun(slot.step("go", timeout_s=SHORT_S))
        wait_until(stepping.is_set)
        await stepped
        await close_all([slot], grace_s=BOUND_S)

    asyncio.run(run())
    assert order == ["cancelled", "closed", "clean"]


def test_an_inline_environment_is_closed_where_it_ran():
    threads, idents = EnvThreads(), list[int]()

    class Inline(AsyncCountdown):
        inline = True

        async def step(self, action):
            idents.append(threading.get_ident())
            return await super().step(action)

        async def close(self):
            idents.append(threading.get_ident())

    async def run():
        slot = await opened(lambda _slot: Inline(), threads)
        await slot.step("go", timeout_s=LONG_S)
        await close_all([slot])

    asyncio.run(run())
    assert idents == [threading.get_ident()] * 2


class Waiting(AsyncCountdown):
    """Awaits for ever."""

    async def step(self, action):
        await asyncio.Event().wait()


def test_one_that_blocks_is_to_blame_also_when_the_time_of_another_is_up_first(release):
    threads = EnvThreads()

    async def run():
        waiting = await opened(lambda _slot: Waiting(), threads)
        env = Blocking(release)
        blocking = await opened(lambda _slot: env, threads)
        first = asyncio.create_task(fate(waiting.step("go", timeout_s=SHORT_S)))
        blocked = await begun(blocking.step("go", timeout_s=LONG_S))
        await_block(threads, env)
        return [(await blocked)[0], (await first)[0]]

    assert asyncio.run(run()) == ["env_timeout", "worker"]


def test_one_that_blocks_in_a_task_or_callback_of_its_own_is_to_blame(release):
    class InTask(Blocking):
        async def step(self, action):
            return await asyncio.wait_for(super().step(action), LONG_S)

    class InCallback(Blocking):
        async def step(self, action):
            asyncio.get_running_loop().call_soon(self.block)
            await asyncio.Event().wait()

    async def run(kind):
        env, threads = kind(release), EnvThreads()
        slot = await opened(lambda _slot: env, threads)
        blocked = await begun(slot.step("go", timeout_s=SHORT_S))
        await_block(threads, env)
        return await blocked

    assert asyncio.run(run(InTask)) == ("env_timeout", BLOCKED)
    assert asyncio.run(run(InCallback))[0] == "env_timeout"


def test_what_ran_on_a_replaced_loop_is_closed_there_when_it_runs_again(release):
    threads, closed = EnvThreads(), list[tuple[str, bool]]()
    ends = list[Callable[[], None]]()

    def keep_end(home: LoopThread) -> None:
        """Let the test, not the time, say when the replaced loop has served for long enough."""
        later = home._loop.call_later

        def call_later(delay_s, callback, *args):
            return (
                ends.append(callback) if delay_s == _LINGER_S else later(delay_s, callback, *args)
            )

        home._loop.call_later = call_later

    class Closing(AsyncCountdown):
        async def reset(self, seed, task):
            self.loop = asyncio.get_running_loop()
            return await super().reset(seed, task)

        async def close(self):
            closed.append(("other", asyncio.get_running_loop() is self.loop))

    class Culprit(Blocking, Closing):
        async def close(self):
            await asyncio.sleep(0.05)
            closed.append(("culprit", asyncio.get_running_loop() is self.loop))

    class Plain(AsyncCountdown):
        def close(self):
            closed.append(("plain", True))

    async def run():
        env = Culprit(release)
        culprit = await opened(lambda _slot: env, threads)
        home = threads.loop
        keep_end(home)
        others = [
            await opened(lambda _slot, kind=each: kind(), threads) for each in (Closing, Plain)
        ]
        blocked = await begun(culprit.step("go", timeout_s=SHORT_S))
        await_block(threads, env)
        await blocked
        release.set()
        for each in others:
            await fate(each.step("go", timeout_s=LONG_S))
        await until(lambda: len(closed) == 3)
        assert not home.is_over
        [end] = ends
        home.post(end)
        await until(lambda: loop_threads() <= before)

    before = loop_threads()
    asyncio.run(run())
    assert sorted(closed) == [("culprit", True), ("other", True), ("plain", True)]


def test_an_exit_in_a_task_of_an_environment_ends_only_its_attempt():
    threads = EnvThreads()

    class Exiting(AsyncCountdown):
        async def step(self, action):
            async def leave():
                sys.exit(3)

            await asyncio.wait_for(leave(), LONG_S)

    async def run():
        exiting = await opened(lambda _slot: Exiting(), threads)
        other = await opened(lambda _slot: AsyncCountdown(), threads)
        kind, message = await fate(exiting.step("go", timeout_s=LONG_S))
        return kind, message, (await other.step("go", timeout_s=LONG_S)).observation

    kind, message, observation = asyncio.run(run())
    assert (kind, observation) == ("env_error", "1 left")
    assert message.startswith("game: step raised SystemExit: 3 (test_env_threads_loop.py:")


def test_a_blocked_loop_is_left_behind_also_when_the_attempt_is_cancelled(release):
    threads = EnvThreads()

    async def run():
        env = Blocking(release)
        blocking = await opened(lambda _slot: env, threads)
        step = asyncio.create_task(blocking.step("go", timeout_s=LONG_S))
        await asyncio.sleep(0)
        await_block(threads, env)
        step.cancel()
        with pytest.raises(asyncio.CancelledError):
            await step
        other = await opened(lambda _slot: AsyncCountdown(), threads)
        return (await other.step("go", timeout_s=LONG_S)).observation

    assert asyncio.run(run()) == "1 left"


def test_a_plain_function_that_makes_an_awaitable_does_not_go_on_on_another_loop(release):
    threads = EnvThreads()
    left = threading.Event()

    class Wrapped(AsyncCountdown):
        def reset(self, seed, task):
            return super().reset(seed, task)

        def step(self, action):
            left.wait(BOUND_S)
            return super().step(action)

    async def run():
        env = Blocking(release)
        blocking = await opened(lambda _slot: env, threads)
        wrapped = await opened(lambda _slot: Wrapped(), threads)
        step = asyncio.create_task(fate(wrapped.step("go", timeout_s=LONG_S)))
        blocked = await begun(blocking.step("go", timeout_s=SHORT_S))
        await_block(threads, env)
        await blocked
        left.set()
        return await step

    assert asyncio.run(run()) == ("worker", HELD_UP)
    gc.collect()  # a coroutine that was never awaited would warn, and warnings are errors


def test_each_environment_that_blocks_is_told_once(release):
    threads, warnings = EnvThreads(), list[str]()
    undo = threads.listen(warnings.append)

    async def run():
        for _ in range(2):
            env = Blocking(release)
            slot = await opened(lambda _slot, env=env: env, threads)
            blocked = await begun(slot.step("go", timeout_s=SHORT_S))
            await_block(threads, env)
            await blocked

    asyncio.run(run())
    assert len(warnings) == 1
    undo()
    threads.warn_once("game: step blocks", "told to another")
    assert len(warnings) == 1


def test_a_pause_costs_nothing_when_another_attempt_is_cancelled_meanwhile(release):
    threads = EnvThreads()

    async def run():
        env = Blocking(release)
        pausing = await opened(lambda _slot: env, threads)
        cancelled = await opened(lambda _slot: Waiting(), threads)
        waiting = asyncio.create_task(cancelled.step("go", timeout_s=LONG_S))
        pause = asyncio.create_task(pausing.step("go", timeout_s=LONG_S))
        await asyncio.sleep(0)
        await_block(threads, env)
        waiting.cancel()
        await asyncio.wait({waiting})
        release.set()
        return (await pause).observation

    assert asyncio.run(run()) == "1 left"


def test_whatever_a_call_raises_is_answered():
    class Panic(BaseException):
        pass

    class Panicking(AsyncCountdown):
        async def step(self, action):
            raise Panic("rust")

    async def run():
        slot = await opened(lambda _slot: Panicking(), EnvThreads())
        return await fate(slot.step("go", timeout_s=LONG_S))

    kind, message = asyncio.run(run())
    assert (kind, message[:31]) == ("env_error", "game: step raised Panic: rust (")


@pytest.mark.filterwarnings("error")
def test_a_coroutine_whose_time_was_up_before_it_began_is_closed():
    home = EnvThreads().loop
    release = threading.Event()

    async def run():
        home.post(lambda: release.wait(LONG_S))
        work = asyncio.sleep(0)
        call = home.submit(work, name="game: close")
        call.drop()
        release.set()
        after = home.submit(lambda: asyncio.sleep(0), name="game: step")
        await after.future
        return inspect.getcoroutinestate(work), call in home.calls

    assert asyncio.run(run()) == (inspect.CORO_CLOSED, False)
