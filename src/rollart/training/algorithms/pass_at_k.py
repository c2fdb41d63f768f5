"""Pass@k training: the reward of k attempts is that of their best (Chen et al. 2025)."""

from dataclasses import dataclass
from math import comb, sqrt
from typing import Annotated

import numpy as np

from rollart.constraints import AtLeast, Finite
from rollart.training.algorithms.clipped_policy import ClippedPolicy
from rollart.types.tokens import Floats, TokenBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class PassAtK(ClippedPolicy):
    """Pass@k: the mean standardised reward of all sets of k members that an attempt is in.

    With c of n attempts right, ρ = 1 - C(n-c, k)/C(n, k) and σ = √(ρ(1-ρ)): a right attempt gets
    (1-ρ)/σ, a wrong one (1 - ρ - C(n-c-1, k-1)/C(n-1, k-1))/σ; both 0 where σ = 0. A group of fewer
    than k counts as k = n. verl's `grpo_passk` is another rule: the best alone gets R1 - R2. Needs
    groups of at least 2.

    Example:
        One of four attempts right, k = 2: it gets 1, the others -0.3333.

        >>> PassAtK(k=4, above=0.5)

    """

    k: Annotated[int, AtLeast(1)] = 4
    """Attempts of which one must be right."""
    above: Annotated[float, Finite()] = 0.5
    """An attempt is right if its reward is above this."""

    def estimate(self, batch: TokenBatch) -> Floats:
        """Return the advantages of right and wrong attempts at all their tokens."""
        right = batch.rewards > self.above
        sizes = np.bincount(batch.groups)
        counts = np.bincount(batch.groups, weights=right).astype(np.int64)
        pairs = zip(sizes.tolist(), counts.tolist(), strict=True)
        table = np.array([pass_at_k_advantages(n, c, self.k) for n, c in pairs]).reshape(-1, 2)
        return table[batch.groups, (~right).astype(np.int64)][batch.owners]


def pass_at_k_advantages(n: int, c: int, k: int) -> tuple[float, float]:
    """Return the advantages of right and wrong attempts where c of n are right.

    Example:
        >>> pass_at_k_advantages(4, 1, 2)
        (1.0, -0.333...)

    """
    k = min(k, n)
    if k < 1:
        return 0.0, 0.0
    rho = 1 - comb(n - c, k) / comb(n, k)
    sigma = sqrt(rho * (1 - rho))
    if not sigma:
        return 0.0, 0.0
    lost = comb(n - c - 1, k - 1) / comb(n - 1, k - 1) if c < n else 0.0
    return (1 - rho) / sigma, (1 - rho - lost) / sigma
