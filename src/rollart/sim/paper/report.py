"""The report: every figure of the paper's results beside the simulator's.

`predicted_in_band` is the share of predicted ratios inside the paper's band or within 10 % of it;
`worst_error` is the largest error of a predicted ratio. Times and utilisations are shown but are
no ratios. Nothing here is typed in but the paper's own figures.
"""

from collections.abc import Callable

from rollart.sim.paper.mechanisms import (
    disaggregation_gains,
    disaggregation_rows,
    lockstep_rows,
    redundancy_gains,
    redundancy_rows,
    reward_rows,
    weight_rows,
)
from rollart.sim.paper.rows import Runs
from rollart.sim.paper.schedules import (
    affinity_rows,
    alpha_rows,
    orderings,
    scaling_rows,
    schedule_rows,
    transfer_rows,
)
from rollart.types import Json

_NEAR = 0.10
"""How far outside its band a figure may lie and still count as met."""


def run(*, quick: bool, progress: Callable[[str], None]) -> dict[str, Json]:
    """Simulate every experiment and compare."""
    runs = Runs(progress, steps=4 if quick else 8, seeds=1 if quick else 3)
    rollouts = Runs(progress, steps=1, seeds=1 if quick else 6)
    redundancy = redundancy_gains(rollouts)
    splits = disaggregation_gains(rollouts)
    rows = [
        *schedule_rows(runs),
        *scaling_rows(runs),
        *affinity_rows(runs),
        *lockstep_rows(rollouts),
        *reward_rows(rollouts),
        *alpha_rows(runs),
        *weight_rows(),
        *transfer_rows(runs),
        *redundancy_rows(redundancy),
        *disaggregation_rows(splits),
    ]
    ratios = [row for row in rows if row.kind == "predicted" and row.measure == "ratio"]
    met = sum(row.error <= _NEAR for row in ratios)
    return {
        "rows": [row.encoded for row in rows],
        "predicted_in_band": met / len(ratios),
        "worst_error": max(row.error for row in ratios),
        "predicted": len(ratios),
        "fitted": sum(row.kind == "fitted" for row in rows),
        "orderings": {
            "schedules": dict(orderings(runs)),
            "adding groups beats enlarging them": (
                redundancy[34, 8] > redundancy[32, 10] and redundancy[36, 8] > redundancy[32, 12]
            ),
            "3P1D is worst": {
                size: min(gains, key=gains.__getitem__) == (3, 1) for size, gains in splits.items()
            },
        },
    }
