"""The report: every figure of the paper's results next to the simulator's.

`predicted_in_band` is the share of predicted ratios inside the paper's band or within 10 % of it;
`worst_error` is the largest error of a predicted ratio. Times and utilisations are listed but do
not count as ratios. The paper's figures are the only constants; all others are simulated.
"""

from collections.abc import Callable, Sequence

from rollart.types import Json
from studies.paper.mechanisms import (
    disaggregation_gains,
    disaggregation_rows,
    lockstep_rows,
    redundancy_gains,
    redundancy_rows,
    reward_rows,
    weight_rows,
)
from studies.paper.rows import PaperExtent, PaperRow, Runs, SetupCollector, simulate_setups
from studies.paper.schedules import (
    affinity_rows,
    alpha_rows,
    orderings,
    scaling_over_sync,
    scaling_rows,
    schedule_rows,
    transfer_rows,
)

_NEAR = 0.10
"""How far outside its band a figure may be and still count as met."""


FULL = PaperExtent(steps=6, seeds=5, rollouts=6)
QUICK = PaperExtent(steps=4, seeds=1, rollouts=1)


def run(*, quick: bool, jobs: int, progress: Callable[[str], None]) -> dict[str, Json]:
    """Simulate every experiment and compare."""
    asked = SetupCollector()
    compare(asked)
    extent = QUICK if quick else FULL
    return compare(simulate_setups(asked.setups, extent, jobs=jobs, progress=progress))


def compare(runs: Runs) -> dict[str, Json]:
    """Return every figure of the paper next to that of the runs."""
    redundancy, splits = redundancy_gains(runs), disaggregation_gains(runs)
    rows = [
        *schedule_rows(runs),
        *scaling_rows(runs),
        *affinity_rows(runs),
        *lockstep_rows(runs),
        *reward_rows(runs),
        *alpha_rows(runs),
        *weight_rows(),
        *transfer_rows(runs),
        *redundancy_rows(redundancy),
        *disaggregation_rows(splits),
    ]
    ratios = [row for row in rows if row.kind == "predicted" and row.measure == "ratio"]
    independent = [row for row in ratios if not row.follows]
    return {
        "rows": [row.encoded for row in rows],
        "predicted_in_band": _met(ratios),
        "worst_error": max(row.error for row in ratios),
        "predicted": len(ratios),
        "fitted": sum(row.kind == "fitted" for row in rows),
        "independent": len(independent),
        "independent_in_band": _met(independent),
        "scaling_over_sync": scaling_over_sync(runs),
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


def _met(rows: Sequence[PaperRow]) -> float:
    return sum(row.error <= _NEAR for row in rows) / len(rows)
