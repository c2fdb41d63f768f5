import asyncio
import threading
import time

import pytest
from live_parts import AsyncCountdown

from rollart.runtime.env_loop import EnvLoop
from rollart.runtime.seat import AttemptError, Seat

LONG_S = 20.0


class Blocking(AsyncCountdown):
    """Blocks its loop where it should await."""

    def __init__(self, release: threading.Event) -> None:
        super().__init__()
        self._release = release

    async def step(self, action):
        self._release.wait(LONG_S)
        return await super().step(action)


async def opened(make, loop: EnvLoop) -> Seat:
    seat = Seat(0, loop=loop)
    await seat.open("game", make, timeout_s=LONG_S)
    await seat.reset(1, {}, timeout_s=LONG_S)
    return seat


def test_an_asynchronous_environment_that_blocks_is_left_behind_with_its_loop():
    release = threading.Event()
    warnings: list[str] = []
    loop = EnvLoop(stall_s=0.4)
    loop.warn = warnings.append

    async def run() -> str:
        blocking = await opened(lambda _slot: Blocking(release), loop)
        other = await opened(lambda _slot: AsyncCountdown(), loop)
        start_s = time.monotonic()
        with pytest.raises(AttemptError, match=r"step: its event loop was blocked"):
            await blocking.step("go", timeout_s=LONG_S)
        outcome = await other.step("go", timeout_s=LONG_S)
        assert time.monotonic() - start_s < LONG_S / 2
        return outcome.observation

    try:
        assert asyncio.run(run()) == "1 left"
    finally:
        release.set()
    [warning] = warnings
    assert warning.startswith("an asynchronous environment has blocked its event loop for ")


def test_calls_that_wait_beside_one_that_blocks_fail_soon_and_not_when_their_time_is_up():
    release, loop = threading.Event(), EnvLoop(stall_s=0.4)

    async def run() -> str:
        blocking = await opened(lambda _slot: Blocking(release), loop)
        other = await opened(lambda _slot: AsyncCountdown(), loop)
        blocked = asyncio.create_task(blocking.step("go", timeout_s=LONG_S))
        await asyncio.sleep(0.05)
        start_s = time.monotonic()
        with pytest.raises(AttemptError, match="step: its event loop was blocked"):
            await other.step("go", timeout_s=LONG_S)
        with pytest.raises(AttemptError, match="step: its event loop was blocked"):
            await blocked
        assert time.monotonic() - start_s < LONG_S / 2
        await other.open("game", lambda _slot: AsyncCountdown(), timeout_s=LONG_S)
        return (await other.reset(1, {}, timeout_s=LONG_S))[0]

    try:
        assert asyncio.run(run()) == "2 left"
    finally:
        release.set()


def test_a_loop_that_answers_is_kept():
    loop, seen = EnvLoop(stall_s=0.4), set[int]()

    async def note() -> None:
        await asyncio.sleep(0.3)
        seen.add(threading.get_ident())

    async def run() -> None:
        for _ in range(3):
            await loop.submit(note())

    asyncio.run(run())
    assert len(seen) == 1
    assert seen != {threading.get_ident()}


def test_cancelling_a_call_cancels_what_runs():
    loop, cancelled = EnvLoop(), threading.Event()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def run() -> None:
        call = loop.submit(wait())
        await asyncio.sleep(0.05)
        call.cancel()
        await asyncio.to_thread(cancelled.wait, LONG_S)

    asyncio.run(run())
    assert cancelled.is_set()
