"""Work of which all or none is wanted leaves nothing behind when one part fails."""

import asyncio

import pytest
from conditions import settled

from rollart.rollout.tasks import together


async def last(ended, name):
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0.01)
        ended.append(name)


async def fail():
    await asyncio.sleep(0)
    raise OSError("no room")


async def give(value):
    return value


def test_all_results_come_in_order():
    assert asyncio.run(together([give(1), give(2)])) == [1, 2]


def test_when_one_fails_the_others_have_ended_before_it_is_told():
    async def run():
        ended = []
        with pytest.raises(OSError, match="no room"):
            await together([last(ended, "a"), fail(), last(ended, "b")])
        assert sorted(ended) == ["a", "b"]
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_when_nobody_waits_any_more_all_have_ended_before_that_is_told():
    async def run():
        ended = []
        waiting = asyncio.create_task(together([last(ended, "a"), last(ended, "b")]))
        await settled()
        waiting.cancel()
        await asyncio.wait({waiting})
        assert (waiting.cancelled(), sorted(ended)) == (True, ["a", "b"])

    asyncio.run(run())
