"""Algorithms: how far each is from its formula in plain Python, and from TRL's own loss.

Hand-made batches (`algorithm_parts/batches.py`: observations between turns, an attempt that sampled
nothing, a single member, failed members, equal rewards) go through the product's advantages, token
weights and losses in several micro-batches, in float64, and through the formulas written out one
number at a time (`algorithm_parts/written_out.py`). Gradients are compared with difference
quotients of the written-out loss.

- `largest_error`: by name, the largest difference of an advantage, a token's loss or the loss
- `gradient_error`: by name, the largest difference of the gradient to a token's log-prob
- `over_trl_error`: by name, the larger of both against `_compute_loss` of TRL; empty without trl
- `worst_error`, `worst_gradient_error`, `worst_trl_error`: the largest of each

Plain: 3 draws of log-probs for each of the batches. `--full`: 20. `--quick`: 1.
"""

import importlib
import importlib.util
import sys
from typing import Any

from benchmarks.algorithm_parts.batches import SHAPES, Attempt, make_attempts
from benchmarks.algorithm_parts.cases import CASES
from benchmarks.algorithm_parts.product import Errors, compare
from rollart.cli.bench import Effort

NAME = "algorithms"
DRAWS: dict[Effort, int] = {"quick": 1, "plain": 3, "full": 20}
SPREADS = (0.05, 0.25)
"""How far apart policies are, in nats: near, and far enough that bounds bind."""


def run(*, effort: Effort) -> dict[str, Any]:
    """Compare every case on every batch."""
    values: dict[str, float] = {}
    gradients: dict[str, float] = {}
    for name, (kind, options) in CASES.items():
        found = [
            compare(kind, options, attempts, micro_batches=3) for attempts in batches(DRAWS[effort])
        ]
        values[name] = max(each.value for each in found)
        gradients[name] = max(each.gradient for each in found)
    over_trl = compare_all_with_trl(DRAWS[effort])
    return {
        "largest_error": values,
        "gradient_error": gradients,
        "over_trl_error": over_trl,
        "worst_error": max(values.values()),
        "worst_gradient_error": max(gradients.values()),
        "worst_trl_error": max(over_trl.values(), default=None),
    }


def batches(draws: int) -> list[list[Attempt]]:
    """Return hand-made batches with log-probs drawn so often."""
    return [
        make_attempts(shapes, seed=seed, spread=SPREADS[seed % len(SPREADS)])
        for shapes in SHAPES.values()
        for seed in range(1, draws + 1)
    ]


def compare_all_with_trl(draws: int) -> dict[str, float]:
    """Return the larger error of loss and gradient for every algorithm that TRL has."""
    if importlib.util.find_spec("trl") is None:
        sys.stderr.write("no trl here: install rollart[bench] to compare with its losses\n")
        return {}
    trl = importlib.import_module("benchmarks.algorithm_parts.trl_losses")
    found: dict[str, float] = {}
    for name in trl.CASES:
        errors: list[Errors] = [trl.compare_with_trl(name, each) for each in batches(draws)]
        found[name] = max(max(each.value, each.gradient) for each in errors)
    return found
