"""The optimizer step under way outlives whoever waits for it."""

import asyncio

from rollart.events import StepFinished
from rollart.rollout import controller as stepping
from rollart.rollout.controller import Stepping
from rollart.types import StepReport

REPORT = StepReport(version=3, metrics={"loss": 1.0})
FINISHED = StepFinished(version=3, metrics={"loss": 1.0})


def test_a_step_nobody_waits_for_any_more_is_taken_in_later():
    async def run():
        door, steps = asyncio.Event(), Stepping()

        async def step():
            await door.wait()
            return REPORT

        steps.begin(step())
        waiting = asyncio.create_task(steps.ended())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
        door.set()
        assert await steps.finish() == FINISHED
        assert steps.is_under_way
        steps.settle()
        assert (steps.is_under_way, await steps.finish()) == (False, None)

    asyncio.run(run())


def test_a_step_that_fails_or_does_not_end_is_not_taken_in(monkeypatch):
    monkeypatch.setattr(stepping, "_PATIENCE_S", 0.01)

    async def run():
        steps = Stepping()

        async def fail():
            raise RuntimeError("out of memory")

        steps.begin(fail())
        assert await steps.finish() is None
        steps.begin(asyncio.sleep(60, REPORT))
        assert await steps.finish() is None
        steps.cancel()
        assert await steps.finish() is None
        assert steps.is_under_way

    asyncio.run(run())
