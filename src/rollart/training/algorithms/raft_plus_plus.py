"""RAFT++: learn from the best attempts alone, with PPO's clip (Xiong et al. 2025)."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np

from rollart.constraints import Finite
from rollart.training.algorithms.clipped_policy import ClippedPolicy
from rollart.types.tokens import Floats, TokenBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class RaftPlusPlus(ClippedPolicy):
    """RAFT++: A = 1 for the attempts of a group with its highest reward, 0 for all others.

    A group whose highest reward is not above `above` has no attempt worth imitating. Groups may
    have one member.

    Example:
        Of rewards 1, 0, 0, 0.5 the first attempt alone is trained.

        >>> RaftPlusPlus(above=0.5)

    """

    min_group_size: ClassVar[int] = 1

    above: Annotated[float, Finite()] = 0.0
    """Only attempts with a reward above this are imitated."""

    def estimate(self, batch: TokenBatch) -> Floats:
        """Return 1 at the tokens of the best attempts."""
        highest = np.full(int(batch.groups.max(initial=-1)) + 1, -np.inf)
        np.maximum.at(highest, batch.groups, batch.rewards)
        is_best = (batch.rewards == highest[batch.groups]) & (batch.rewards > self.above)
        return is_best[batch.owners].astype(np.float64)
