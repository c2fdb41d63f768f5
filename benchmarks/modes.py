"""The five modes live, side by side: trained trajectories a second with slow environments.

Every mode has the same number of concurrent environments, the same model and batch. A step of an
environment takes normal(mean, deviation) clamped at 0. `pace_over_drop` compares two choices at the
staleness bound: the default, which waits a while for work about to become too old, and dropping it.

`trajectory_over_lockstep` compares rollout alone: trajectories finished a second while rolling out,
lock-step (`sync`) against per trajectory, the latter with a staleness bound that does not hold it
back. Episodes have one to eight turns, so in lock-step the short ones also wait for the long.
"""

from statistics import median

from benchmarks.live_runs.timed import Timed, lake_config, run_live, say

NAME = "modes"
STEPS = {"sync": 6, "sync_plus": 9, "one_off": 9, "areal": 18, "rollart": 18}
"""Optimizer steps of each mode: the quicker its steps, the more are counted."""
MEAN_S = 0.25
RATIOS = (0.1, 0.3, 0.5, 0.7, 1.0)
ENVIRONMENTS = 64
ROLLOUT_ALPHA = 4
"""Wide enough that rollout, measured alone, never waits for training."""


def _run(mode: str, *overrides: str, ratio: float, steps: int, alpha: int = 1) -> Timed:
    config = lake_config(
        f"run.mode={mode}",
        f"run.steps={steps}",
        f"run.environments={ENVIRONMENTS}",
        f"staleness.alpha={alpha}",
        "batching.groups_per_step=8",
        "batching.group_size=8",
        *overrides,
        mean_s=MEAN_S,
        deviation_s=MEAN_S * ratio,
    )
    return run_live(config)


def run(*, quick: bool) -> dict[str, object]:
    trained: dict[str, list[float]] = {mode: [] for mode in STEPS}
    dropping: list[float] = []
    for number in range(1 if quick else 3):
        for mode, steps in STEPS.items():
            rate = _run(mode, ratio=1.0, steps=5 if quick else steps).trained_per_s
            trained[mode].append(rate)
            say(f"round {number + 1}: {mode} {rate:.1f} trained trajectories/s")
        steps = 5 if quick else STEPS["rollart"]
        rate = _run("rollart", "staleness.at_bound=drop", ratio=1.0, steps=steps).trained_per_s
        dropping.append(rate)
        say(f"round {number + 1}: rollart that drops at the bound {rate:.1f}")
    over: dict[str, float] = {}
    for ratio in RATIOS:
        pairs: list[float] = []
        for _ in range(1 if quick else 2):
            locked = _run("sync", ratio=ratio, steps=4).rollout_per_s(lockstep=True)
            free = _run("rollart", ratio=ratio, steps=12, alpha=ROLLOUT_ALPHA)
            pairs.append(free.rollout_per_s(lockstep=False) / locked)
        over[str(ratio)] = round(median(pairs), 3)
        say(f"deviation {ratio} of the mean: trajectory over lock-step {over[str(ratio)]}")
    rates = {mode: round(median(values), 2) for mode, values in trained.items()}
    return {
        "rollart_over_sync": _ratio(trained["rollart"], trained["sync"]),
        "rollart_over_sync_plus": _ratio(trained["rollart"], trained["sync_plus"]),
        "trajectory_over_lockstep": over,
        "trained_per_s": rates,
        "pace_over_drop": _ratio(trained["rollart"], dropping),
    }


def _ratio(rates: list[float], others: list[float]) -> float:
    return round(median(one / other for one, other in zip(rates, others, strict=True)), 3)
