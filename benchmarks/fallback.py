"""A pool that is lost with all its node held, and comes back: how long its tasks stand still.

Two tasks on a simulated cluster, each with a pool of its own. The node of one pool, which also
holds the trainer and every environment worker, is killed: engine, trainer and environments with it.
Measured by the run's own log, from just before the kill: until every attempt that was under way is
served again by the other pool, until the next optimizer step; and from the node's return until its
own pool serves its task again and trainer and environment workers are back.

Plain: the node is killed 3 times. `--full`: 8 times. `--quick`: once.
"""

import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.live_runs.timed import say
from benchmarks.ray_runs.simulated import SimulatedCluster
from benchmarks.ray_runs.watched import (
    WatchedRun,
    continued,
    served_since,
    step_time,
    steps,
)
from rollart.cli.bench import Effort
from rollart.observe.log import read_log
from rollart.observe.replay import replay, turns_served

NAME = "fallback"
NODE = {"cpus": 2, "H800": 1, "near": 4}
_STEPS = 8
_ROUNDS: dict[Effort, int] = {"quick": 1, "plain": 3, "full": 8}
_LIMIT_S = 10.0
"""Time within which all tasks of a lost pool are to go on."""


def lose_and_return(run: WatchedRun, cluster: SimulatedCluster) -> dict[str, float]:
    """Kill the node and let it come back; return what took how long."""
    domain_of = run.domain_of()
    killed_s = run.now()
    cluster.remove("compute")
    run.wait(lambda records: all(continued(records, killed_s).values()))
    again = [at_s for at_s in continued(run.records(), killed_s).values() if at_s is not None]
    stepped_s = run.wait(lambda records: step_time(records, since_s=killed_s))
    cluster.add("compute", **NODE)
    back_s = run.now()

    def is_home(records: Any) -> float | None:
        served = served_since(records, back_s, domain_of=domain_of)
        return next((at_s for *who, at_s in served if who == ["left", "compute"]), None)

    home_s = run.wait(is_home)
    assert home_s is not None

    def all_home(_records: Any) -> bool:
        held = [*run.bindings("trainer-"), *run.bindings("environments-")]
        return len(held) >= 1 + 2 and all(row["actual"] == "near" for row in held)

    start = time.monotonic()
    run.wait(all_home)
    waited = time.monotonic() - start
    after = steps(run.records())
    run.wait(lambda records: steps(records) >= after + 3)
    return {
        "continued_s": max(again, default=killed_s) - killed_s,
        "stepped_s": stepped_s - killed_s,
        "returned_s": home_s - back_s,
        "all_home_s": home_s - back_s + waited,
    }


def run(*, effort: Effort) -> dict[str, object]:
    rounds: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory(prefix="rollart-fallback-") as name:
        with SimulatedCluster(far=4) as cluster:
            cluster.add("compute", **NODE)
            cluster.add("bandwidth", cpus=2, H20=1)
            watched = WatchedRun(Path(name), cluster.address)
            try:
                watched.wait(lambda records: steps(records) >= _STEPS)
                share = turns_served(read_log(watched.directory / "events.jsonl"))
                for _ in range(_ROUNDS[effort]):
                    rounds.append(lose_and_return(watched, cluster))
                    say(f"{rounds[-1]}")
                watched.interrupt()
                code, said = watched.finish()
                assert code == 130, said[-3000:]
            finally:
                watched.end()
        proof = replay(watched.directory)
    own = {"left": "compute", "right": "bandwidth"}
    return {
        "own_pool": {
            task: round(share[task].get(pool, 0) / sum(share[task].values()), 4)
            for task, pool in own.items()
        },
        **{key: round(median(each[key] for each in rounds), 2) for key in rounds[0]},
        "worst_continued_s": round(max(each["continued_s"] for each in rounds), 2),
        "within_10_s": [each["continued_s"] <= _LIMIT_S for each in rounds],
        "rounds": len(rounds),
        "lost": proof["lost"],
        "trained_twice": proof["trained_twice"],
        "same_commands": proof["same_commands"],
    }
