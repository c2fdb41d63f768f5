import asyncio
import threading
import time

import pytest
from live_parts import AsyncCountdown

from rollart.runtime.env_loop import EnvLoop
from rollart.runtime.seat import AttemptError, Seat, close_all

LONG_S = 20.0
LIMIT_S = 1.5
BLOCKED = "game: step took more than 1.5 s (tasks.game.step_timeout_s)"
HELD_UP = "game: step: another environment blocked their event loop"


class Blocking(AsyncCountdown):
    """Blocks its loop where it should await."""

    def __init__(self, release: threading.Event) -> None:
        super().__init__()
        self._release = release

    async def step(self, action):
        self._release.wait(LONG_S)
        return await super().step(action)


@pytest.fixture
def release():
    event = threading.Event()
    yield event
    event.set()


async def opened(make, loop: EnvLoop) -> Seat:
    seat = Seat(0, loop=loop)
    await seat.open("game", make, timeout_s=LONG_S)
    await seat.reset(1, {}, timeout_s=LONG_S)
    return seat


async def fate(call) -> tuple[str, str]:
    with pytest.raises(AttemptError) as caught:
        await call
    return caught.value.failure.kind, caught.value.failure.message


def test_one_that_blocks_fails_and_those_it_holds_up_are_made_again_uncounted(release):
    loop, warnings = EnvLoop(), list[str]()
    loop.warn = warnings.append

    async def run():
        blocking = await opened(lambda _slot: Blocking(release), loop)
        waiting = await opened(lambda _slot: AsyncCountdown(), loop)
        thinking = await opened(lambda _slot: AsyncCountdown(), loop)
        start_s = time.monotonic()
        blocked = asyncio.create_task(fate(blocking.step("go", timeout_s=LIMIT_S)))
        await asyncio.sleep(0.05)
        held_up = asyncio.create_task(fate(waiting.step("go", timeout_s=LONG_S)))
        fates = [await blocked, await held_up, await fate(thinking.step("go", timeout_s=LONG_S))]
        await waiting.open("game", lambda _slot: AsyncCountdown(), timeout_s=LONG_S)
        again = await waiting.reset(1, {}, timeout_s=LONG_S)
        assert time.monotonic() - start_s < LONG_S / 2
        return fates, again[0]

    fates, again = asyncio.run(run())
    assert fates == [("env_timeout", BLOCKED), ("worker", HELD_UP), ("worker", HELD_UP)]
    assert again == "2 left"
    [warning] = warnings
    assert warning.startswith("an asynchronous environment blocks its event loop")


def test_many_whose_time_is_up_at_once_leave_one_to_blame(release):
    loop = EnvLoop()

    async def run():
        blocking = await opened(lambda _slot: Blocking(release), loop)
        others = [await opened(lambda _slot: AsyncCountdown(), loop) for _ in range(5)]
        return await asyncio.gather(
            *[fate(seat.step("go", timeout_s=LIMIT_S)) for seat in (blocking, *others)]
        )

    kinds = sorted(kind for kind, _ in asyncio.run(run()))
    assert kinds.count("worker") >= 5


def test_a_pause_within_the_time_of_a_call_costs_nothing():
    loop = EnvLoop()

    class Pausing(AsyncCountdown):
        async def step(self, action):
            time.sleep(1.3)
            return await super().step(action)

    async def run():
        seat = await opened(lambda _slot: Pausing(), loop)
        other = await opened(lambda _slot: AsyncCountdown(), loop)
        outcomes = await asyncio.gather(
            seat.step("go", timeout_s=LONG_S), other.step("go", timeout_s=LONG_S)
        )
        return [outcome.observation for outcome in outcomes]

    assert asyncio.run(run()) == ["1 left", "1 left"]


def test_one_that_hangs_without_blocking_holds_up_nobody():
    loop = EnvLoop()

    class Hung(AsyncCountdown):
        async def step(self, action):
            await asyncio.Event().wait()

    async def run():
        hung = await opened(lambda _slot: Hung(), loop)
        other = await opened(lambda _slot: AsyncCountdown(), loop)
        kind, _ = await fate(hung.step("go", timeout_s=0.05))
        return kind, (await other.step("go", timeout_s=LONG_S)).observation

    assert asyncio.run(run()) == ("env_timeout", "1 left")


def test_a_call_is_cancelled_before_its_environment_closes_and_has_time_to_clean_up():
    loop, order = EnvLoop(), list[str]()

    class Careful(AsyncCountdown):
        async def step(self, action):
            try:
                await asyncio.Event().wait()
            finally:
                order.append("cancelled")
                await asyncio.sleep(0.1)
                order.append("clean")

        async def close(self):
            order.append("closed")

    async def run():
        seat = await opened(lambda _slot: Careful(), loop)
        await fate(seat.step("go", timeout_s=0.05))
        await close_all([seat])

    asyncio.run(run())
    assert order == ["cancelled", "closed", "clean"]


def test_an_inline_environment_is_closed_where_it_ran():
    loop, threads = EnvLoop(), list[int]()

    class Inline(AsyncCountdown):
        inline = True

        async def step(self, action):
            threads.append(threading.get_ident())
            return await super().step(action)

        async def close(self):
            threads.append(threading.get_ident())

    async def run():
        seat = await opened(lambda _slot: Inline(), loop)
        await seat.step("go", timeout_s=LONG_S)
        await close_all([seat])

    asyncio.run(run())
    assert threads == [threading.get_ident()] * 2
