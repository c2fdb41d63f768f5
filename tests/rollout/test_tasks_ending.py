import asyncio
import os
import signal
import threading

import pytest
from conditions import BOUND_S, until

from rollart.rollout.env_contract import AttemptError
from rollart.rollout.env_slot import EnvSlot
from rollart.rollout.tasks import run


class Stubborn:
    """An environment that does not let itself be cancelled."""

    async def reset(self, seed, task):
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                continue

    async def step(self, action):
        raise NotImplementedError


def test_what_main_returns_is_returned_and_what_it_raises_is_raised():
    async def answer() -> int:
        return 7

    async def fail() -> None:
        raise OSError("lost")

    assert run(answer()) == 7
    with pytest.raises(OSError, match="lost"):
        run(fail())


def test_tasks_left_by_main_end_in_order():
    ended: list[str] = []

    async def linger() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("linger")

    async def main() -> "asyncio.Task[None]":
        task = asyncio.create_task(linger())
        await asyncio.sleep(0)
        return task

    assert run(main()).cancelled()
    assert ended == ["linger"]


def test_an_environment_that_swallows_cancellation_does_not_keep_the_loop_from_ending():
    async def main() -> str:
        seat = EnvSlot(0)
        await seat.open("stubborn", lambda _slot: Stubborn(), timeout_s=BOUND_S)
        with pytest.raises(AttemptError) as caught:
            await seat.reset(1, {}, timeout_s=0.01)
        return caught.value.failure.kind

    assert run(main(), grace_s=0.05) == "env_timeout"


def test_a_cancelled_main_still_raises():
    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    with pytest.raises(asyncio.CancelledError):
        run(main())


def test_an_interrupt_ends_what_runs_in_order():
    ended: list[str] = []

    async def main() -> None:
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(asyncio.Event().wait())
                await asyncio.sleep(0)
                os.kill(os.getpid(), signal.SIGINT)
        finally:
            ended.append("main")

    with pytest.raises(KeyboardInterrupt):
        run(main())
    assert ended == ["main"]


def test_a_thread_that_hangs_does_not_keep_the_loop_from_ending():
    begun, release, ended = (threading.Event() for _ in range(3))

    def hang() -> None:
        begun.set()
        release.wait(BOUND_S)
        ended.set()

    async def main() -> str:
        task = asyncio.create_task(asyncio.to_thread(hang))
        await until(begun.is_set)
        assert not task.done()
        return "done"

    assert run(main(), grace_s=0.1) == "done"
    assert not ended.is_set()
    release.set()
