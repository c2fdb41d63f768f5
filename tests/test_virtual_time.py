"""Time that jumps: order, executors, standstill."""

import asyncio

import pytest
from virtual_time import StandstillError, VirtualClock, run


def test_time_jumps_from_timer_to_timer_and_ties_keep_their_order():
    seen: list[tuple[float, str]] = []

    async def wait(loop, name, *delays):
        for delay in delays:
            await VirtualClock(loop).sleep(delay)
            seen.append((loop.time(), name))

    async def main(loop):
        await asyncio.gather(
            wait(loop, "a", 7200.0, 1.0), wait(loop, "b", 7200.0), wait(loop, "c", 1)
        )

    run(main)
    assert seen == [(1.0, "c"), (7200.0, "a"), (7200.0, "b"), (7201.0, "a")]


def test_what_follows_from_a_timer_happens_before_the_next_one_at_the_same_time():
    seen: list[str] = []

    async def wait(name):
        await asyncio.sleep(1)
        for _ in range(3):
            await asyncio.sleep(0)
            seen.append(name)

    async def main(_loop):
        await asyncio.gather(wait("a"), wait("b"))

    run(main)
    assert seen == ["a", "a", "a", "b", "b", "b"]


def test_work_in_an_executor_takes_the_time_it_says():
    async def main(loop):
        def work():
            loop.spend(2.0)
            loop.spend(3.0)
            return "done"

        return await asyncio.to_thread(work), loop.time()

    assert run(main) == ("done", 5.0)


def test_a_program_that_waits_for_nothing_is_told():
    with pytest.raises(StandstillError, match="nothing is left to happen at 4 s"):

        async def main(_loop):
            await asyncio.sleep(4)
            await asyncio.Event().wait()

        run(main)
