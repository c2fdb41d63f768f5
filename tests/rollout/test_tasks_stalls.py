import asyncio

import pytest
from virtual_time import VirtualClock, VirtualLoop, run

from rollart.rollout.tasks import watch_stalls


@pytest.fixture
def watched(monkeypatch):
    """Return what is said of a loop that something blocks for some seconds."""

    def watch(block_s: float) -> list[str]:
        warnings: list[str] = []

        async def main(loop: VirtualLoop) -> None:
            monkeypatch.setattr("rollart.rollout.tasks.SystemClock", lambda: VirtualClock(loop))
            watching = asyncio.create_task(watch_stalls(warnings.append, every_s=1.0, stall_s=5.0))
            await asyncio.sleep(3)
            loop.block(block_s)
            await asyncio.sleep(3)
            watching.cancel()

        run(main)
        return warnings

    return watch


def test_a_loop_that_was_blocked_is_reported_with_the_likely_cause(watched):
    [warning] = watched(7.0)
    assert warning.startswith("the event loop was blocked for 7 s")
    assert "does an environment that declares `inline = True` block?" in warning


@pytest.mark.parametrize("block_s", [0.0, 4.0])
def test_a_loop_that_runs_is_not(watched, block_s):
    assert watched(block_s) == []
