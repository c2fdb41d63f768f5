import asyncio
import time

from rollart.rollout.tasks import watch_stalls


def watched(block_s: float) -> list[str]:
    warnings: list[str] = []

    async def run() -> None:
        watch = asyncio.create_task(watch_stalls(warnings.append, every_s=0.01, stall_s=0.3))
        await asyncio.sleep(0.03)
        time.sleep(block_s)
        await asyncio.sleep(0.03)
        watch.cancel()

    asyncio.run(run())
    return warnings


def test_a_loop_that_was_blocked_is_reported_with_the_likely_cause():
    [warning] = watched(0.5)
    assert warning.startswith("the event loop was blocked for ")
    assert "does an environment that declares `inline = True` block?" in warning


def test_a_loop_that_runs_is_not():
    assert watched(0.0) == []
