"""Reward functions as Ray tasks on a cluster that starts without a processor: nodes come and go.

Ray's autoscaler decides, nodes are raylets on this machine (two cores stand for none of them: a
function that waits stands for one that computes). A burst of scores finds no node, nodes are
started for it, every trajectory is scored, and when nothing is left to score the nodes go.

- `nodes_before`, `nodes_peak`, `nodes_after`: nodes that may score, before, at most, at the end
- `scored`, `failed`: of the burst's calls
- `first_score_s`: from the first call to its score, the first node's start included
- `scaled_down_s`: from the last score until no node is left

Plain: a burst of 64 calls. `--full`: 256. `--quick`: 16.
"""

import asyncio
import time
from collections.abc import Callable
from random import Random

from benchmarks.fault_parts.autoscaling import autoscaled
from benchmarks.rewardfaults import make_trajectory
from rollart.cli.bench import Effort
from rollart.cluster.ray_rewards import RayInvoker
from rollart.cluster.ray_session import connected, nodes
from rollart.control.autoscaling import Scaling
from rollart.errors import ScoreError
from rollart.rewards.invoke.factory import make_reliable
from rollart.rewards.invoke.options import CallLimits, InvokerOptions, Reliability
from rollart.types import ScoreCall

NAME = "rewardray"
NODES, CALLS_PER_NODE = 2, 2
_WAIT_S = 120.0


def _workers() -> int:
    """Return how many nodes there are that may score."""
    return sum(node.resources.get("CPU", 0) > 0 for node in nodes())


async def _watch(counts: list[int], until: Callable[[], bool]) -> None:
    end = time.monotonic() + _WAIT_S
    while not until() and time.monotonic() < end:
        counts.append(await asyncio.to_thread(_workers))
        await asyncio.sleep(0.25)


async def measure(calls: int) -> dict[str, object]:
    """Score a burst and watch the cluster."""
    options = InvokerOptions(
        kind="ray",
        cpus=1.0,
        scaling=Scaling(max_instances=NODES * CALLS_PER_NODE, idle_s=2.0),
        limits=CallLimits(start_timeout_s=90.0, timeout_s=30.0),
        reliability=Reliability(attempts=3, deadline_s=300.0),
    )
    invoker = make_reliable(RayInvoker(options), options)
    draw = Random(3)
    burst = [
        ScoreCall(
            function="benchmarks.live_runs.judged:judge",
            options={"mean_s": 0.5},
            trajectories=(make_trajectory(number, draw),),
            is_group=False,
            key=f"burst/{number}",
        )
        for number in range(calls)
    ]
    counts, ends, failed = [_workers()], list[float](), list[str]()
    begin = time.monotonic()

    async def score(call: ScoreCall) -> None:
        try:
            await invoker.invoke(call)
            ends.append(time.monotonic())
        except ScoreError as error:
            failed.append(str(error))

    watching = asyncio.create_task(_watch(counts, lambda: len(ends) + len(failed) == calls))
    await asyncio.gather(*map(score, burst))
    await watching
    before, peak = counts[0], max(counts)
    last, after = time.monotonic(), list[int]()
    await _watch(after, lambda: bool(after) and after[-1] == 0)
    await invoker.close()
    return {
        "nodes_before": before,
        "nodes_peak": peak,
        "nodes_after": after[-1],
        "scored": len(ends),
        "failed": len(failed),
        "first_score_s": round(ends[0] - begin, 1) if ends else None,
        "scaled_down_s": round(time.monotonic() - last, 1),
        "reasons": sorted(set(failed))[:3],
    }


def run(*, effort: Effort) -> dict[str, object]:
    with (
        autoscaled(node_cpus=CALLS_PER_NODE, most_nodes=NODES, idle_s=6.0) as address,
        connected(address),
    ):
        return asyncio.run(measure({"quick": 16, "plain": 64, "full": 256}[effort]))
