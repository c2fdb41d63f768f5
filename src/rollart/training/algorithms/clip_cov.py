"""Clip-Cov: some tokens whose probability and advantage rise together lose their gradient.

They are what makes the entropy fall (Cui et al. 2025).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated
from zlib import crc32

import numpy as np

from rollart.constraints import AtLeast, Between, Finite
from rollart.training.algorithms.clipped_policy import clip
from rollart.training.algorithms.corrections import CorrectedPolicy, Surrogate
from rollart.training.algorithms.group_policy import GroupPolicy
from rollart.types.tokens import Floats, LossTerms, Tensor, TokenBatch

_STOPPED = "covariance_fraction"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipCov(GroupPolicy):
    """Clip-Cov: PPO, but a share of the tokens of large covariance c have no gradient.

    c = (A - mean A)·(logp_proximal - mean logp_proximal) over the batch's sampled tokens. Of those
    with cov_low < c < cov_high a random `share` of all tokens, at least 1, is chosen; the draw is
    seeded by the batch, so every rank and every resumed run chooses alike. Needs groups of at
    least 2 and the model's log-probs before the advantages.

    Example:
        A = 1, 1, -1, -1 and logp = -0.1, -2, -0.1, -2 have c = 0.95, -0.95, -0.95, 0.95.

        >>> ClipCov(share=2e-4, cov_low=1.0, cov_high=5.0)

    """

    clip_low: Annotated[float, Between(0, 1)] = 1.0
    """The policy ratio is clipped below at 1 - clip_low; 1: not at all."""
    clip_high: Annotated[float, Finite(), AtLeast(0)] = 1.0
    """The policy ratio is clipped above at 1 + clip_high."""
    share: Annotated[float, Between(0, 1)] = 2e-4
    """Share of the batch's sampled tokens that lose their gradient."""
    cov_low: Annotated[float, Finite()] = 1.0
    """Only tokens of a covariance above this."""
    cov_high: Annotated[float, Finite()] = 5.0
    """Only tokens of a covariance below this."""

    @property
    def reads_scores(self) -> bool:
        """Covariances are of the model's log-probs."""
        return True

    def columns(self, batch: TokenBatch, advantages: Floats) -> Mapping[str, Floats]:
        """Mark the tokens that lose their gradient, over the whole batch."""
        found, covariances = np.zeros(len(advantages)), covariances_of(batch, advantages)
        places = np.flatnonzero((covariances > self.cov_low) & (covariances < self.cov_high))
        count = min(len(places), max(int(self.share * batch.sampled.sum()), 1))
        seed = crc32(np.ascontiguousarray(batch.behaviour).tobytes())
        found[np.random.default_rng(seed).permutation(places)[:count]] = 1.0
        return {**CorrectedPolicy.columns(self, batch, advantages), _STOPPED: found}

    def surrogate(self, terms: LossTerms, deltas: Tensor) -> Surrogate:
        """Return the clipped loss of each token, without gradient for those chosen."""
        stopped = terms.columns[_STOPPED] > 0.5
        low, high = 1 - self.clip_low, 1 + self.clip_high
        clipped = clip(deltas.exp(), terms.advantages, low=low, high=high)
        return Surrogate(
            losses=clipped.losses.detach().where(stopped, clipped.losses),
            means={**clipped.means, _STOPPED: stopped},
        )


def covariances_of(batch: TokenBatch, advantages: Floats) -> Floats:
    """Return each sampled token's part of the covariance of advantage and log-prob; else nan.

    Example:
        >>> covariances_of(batch, np.array([1.0, 1.0, -1.0, -1.0]))  # all sampled
        array([ 0.95, -0.95, -0.95,  0.95])

    """
    drawn, found = batch.sampled, np.full(len(advantages), np.nan)
    assert batch.proximal is not None
    if drawn.any():
        some, logprobs = advantages[drawn], batch.proximal[drawn].astype(np.float64)
        found[drawn] = (some - some.mean()) * (logprobs - logprobs.mean())
    return found
