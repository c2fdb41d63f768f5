"""Of 16 environments one hung for ever, one 20 times slower, one crashing at random.

A fault belongs to its slot: a replaced environment in that slot has it again. The healthy and the
faulty run have the same config and alternate.
"""

from statistics import median

from benchmarks.live_runs.timed import Timed, lake_config, run_live, say

NAME = "faults"


def _run(steps: int, **faults: object) -> Timed:
    config = lake_config(
        f"run.steps={steps}",
        "run.environments=16",
        "batching.groups_per_step=8",
        "batching.group_size=4",
        "staleness.alpha=2",
        "redundancy.hedge_after=3.0",
        "redundancy.extra_groups=2",
        "retry.backoff_s=0.25",
        "tasks.lake.step_timeout_s=5.0",
        mean_s=0.1,
        deviation_s=0.03,
        **faults,
    )
    return run_live(config)


def run(*, quick: bool) -> dict[str, object]:
    rounds, steps = (1, 24) if quick else (3, 40)
    kept: list[float] = []
    lost = twice = 0
    rates: list[dict[str, float]] = []
    for number in range(rounds):
        healthy = _run(steps)
        faulty = _run(steps, hung=[3], slow=[7], crashing=[11])
        kept.append(faulty.trained_per_s / healthy.trained_per_s)
        for timed in (healthy, faulty):
            lost += timed.proof["lost"]
            twice += timed.proof["trained_twice"]
        rates.append(
            {"healthy": round(healthy.trained_per_s, 2), "faulty": round(faulty.trained_per_s, 2)}
        )
        say(f"round {number + 1}: {rates[-1]} kept {kept[-1]:.3f} {faulty.proof['ended']}")
    return {
        "kept": round(median(kept), 3),
        "lost": lost,
        "trained_twice": twice,
        "trained_per_s": rates,
    }
