"""A limit that holds for a whole process: over threads and their event loops."""

import asyncio
import threading

import pytest

from rollart.rewards.chat import CrossLoopSemaphore


def test_no_more_sit_than_there_are_seats_on_many_loops():
    seats, lock = CrossLoopSemaphore(3), threading.Lock()
    now = most = done = 0

    async def sit() -> None:
        nonlocal now, most, done
        async with seats:
            with lock:
                now += 1
                most = max(most, now)
            await asyncio.sleep(0.001)
            with lock:
                now, done = now - 1, done + 1

    async def lane() -> None:
        await asyncio.gather(*(sit() for _ in range(10)))

    threads = [threading.Thread(target=lambda: asyncio.run(lane())) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert (most, now, done) == (3, 0, 60)


async def hold(
    seats: CrossLoopSemaphore, until: asyncio.Event, order: list[str], name: str
) -> None:
    async with seats:
        order.append(name)
        await until.wait()


def test_seats_are_given_in_order_and_those_of_the_gone_are_passed_on():
    async def run() -> list[str]:
        seats, until, order = CrossLoopSemaphore(1), asyncio.Event(), list[str]()
        tasks = {name: asyncio.create_task(hold(seats, until, order, name)) for name in "abcd"}
        await asyncio.sleep(0)
        tasks["b"].cancel()
        await asyncio.sleep(0)
        until.set()
        await tasks["a"]
        # a's seat is on its way to c, who goes before it arrives.
        tasks["c"].cancel()
        await asyncio.wait(tasks.values())
        assert tasks["b"].cancelled()
        assert tasks["c"].cancelled()
        async with asyncio.timeout(60), seats:
            return order

    assert asyncio.run(run()) == ["a", "d"]


def test_what_is_raised_within_gives_the_seat_back():
    async def run() -> None:
        seats = CrossLoopSemaphore(1)
        for _ in range(3):
            with pytest.raises(KeyError):
                async with asyncio.timeout(60), seats:
                    raise KeyError

    asyncio.run(run())
