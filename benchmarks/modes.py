"""The five modes live, side by side: trained trajectories a second with slow environments.

Every mode has the same number of concurrent environments, the same model and batch. A step of an
environment takes normal(mean, deviation) clamped at 0. `pace_over_drop` compares two choices at the
staleness bound: the default, which waits a while for work about to become too old, and dropping it.
Not counted are the first steps and, in every mode alike, the last alpha + 1: a mode that works
ahead has work in flight when the count begins, and must have as much when it ends.

`trajectory_over_lockstep` compares rollout alone, and one thing only: a batch of 128 episodes of 32
turns, from its first launch to its last end, with all environments stepping together (`sync`) and
each by itself (`sync_plus`). Nothing is launched beyond the batch, nothing is trained beside it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import mean, median

from benchmarks.live_runs.timed import lake_config, run_live, say

NAME = "modes"
STEPS = {"sync": 6, "sync_plus": 9, "one_off": 9, "areal": 18, "rollart": 18}
"""Optimizer steps of each mode that are not left out: the quicker they are, the more."""
ALPHA = 1
LEFT_OUT = ALPHA + 1
"""Last steps that are not counted: nothing is started any more while they are made."""
MEAN_S = 0.25
RATIOS = (0.1, 0.3, 0.5, 0.7, 1.0)
ENVIRONMENTS = 64
ROLLOUT = {"environments": 128, "turns": 32, "mean_s": 0.15, "sampled_tokens": 8}
"""Episodes as long as the paper's FrozenLake (20 to 100 turns); a turn's sampling takes less than
its environment.
"""


def _trained_per_s(mode: str, *overrides: str, steps: int) -> float:
    config = lake_config(
        f"run.mode={mode}",
        f"run.steps={steps + LEFT_OUT}",
        f"run.environments={ENVIRONMENTS}",
        f"staleness.alpha={ALPHA}",
        "batching.groups_per_step=8",
        "batching.group_size=8",
        *overrides,
        mean_s=MEAN_S,
        deviation_s=MEAN_S,
    )
    return run_live(config).trained_per_s(left_out=LEFT_OUT)


def _rollout_s(mode: str, *, ratio: float) -> float:
    """Return the mean time of a batch's rollout; the first one warms up."""
    turns, mean_s = ROLLOUT["turns"], ROLLOUT["mean_s"]
    config = lake_config(
        f"run.mode={mode}",
        "run.steps=3",
        f"run.environments={ROLLOUT['environments']}",
        f"batching.groups_per_step={ROLLOUT['environments'] // 8}",
        "batching.group_size=8",
        f"sampling.max_tokens={ROLLOUT['sampled_tokens']}",
        f"tasks.lake.max_turns={turns}",
    )
    errand = replace(
        config.tasks["lake"],
        env="benchmarks.live_runs.judged:Errand",
        options={"turns": turns, "mean_s": mean_s, "deviation_s": mean_s * ratio},
    )
    return mean(run_live(replace(config, tasks={"lake": errand})).rollouts_s[1:])


def run(*, quick: bool) -> dict[str, object]:
    trained: dict[str, list[float]] = {mode: [] for mode in STEPS}
    dropping: list[float] = []
    for number in range(1 if quick else 3):
        for mode, steps in STEPS.items():
            rate = _trained_per_s(mode, steps=5 if quick else steps)
            trained[mode].append(rate)
            say(f"round {number + 1}: {mode} {rate:.1f} trained trajectories/s")
        steps = 5 if quick else STEPS["rollart"]
        rate = _trained_per_s("rollart", "staleness.at_bound=drop", steps=steps)
        dropping.append(rate)
        say(f"round {number + 1}: rollart that drops at the bound {rate:.1f}")
    over: dict[float, list[float]] = {}
    for ratio in RATIOS:
        over[ratio] = [
            _rollout_s("sync", ratio=ratio) / _rollout_s("sync_plus", ratio=ratio)
            for _ in range(1 if quick else 2)
        ]
        say(f"deviation {ratio} of the mean: trajectory over lock-step {over[ratio]}")
    return report(trained, dropping=dropping, over=over)


def report(
    trained: Mapping[str, Sequence[float]],
    *,
    dropping: Sequence[float],
    over: Mapping[float, Sequence[float]],
) -> dict[str, object]:
    """Return the figures of all rounds: rates by mode, and ratios to lock-step by deviation."""
    return {
        "rollart_over_sync": _ratio(trained["rollart"], trained["sync"]),
        "rollart_over_sync_plus": _ratio(trained["rollart"], trained["sync_plus"]),
        "trajectory_over_lockstep": {str(r): round(median(each), 3) for r, each in over.items()},
        "trained_per_s": {mode: round(median(rates), 2) for mode, rates in trained.items()},
        "pace_over_drop": _ratio(trained["rollart"], dropping),
    }


def _ratio(rates: Sequence[float], others: Sequence[float]) -> float:
    return round(median(one / other for one, other in zip(rates, others, strict=True)), 3)
