"""GiGPO: groups within groups, the turns before which the agent saw the same (Feng et al. 2025)."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from rollart.constraints import AtLeast, Between, Finite
from rollart.errors import InvariantError
from rollart.training.algorithms.clipped_policy import ClippedPolicy
from rollart.training.algorithms.sequences import compare, turn_returns
from rollart.types.tokens import Floats, TokenBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Gigpo(ClippedPolicy):
    """GiGPO: A = A_E + state_weight·A_S, the episode's advantage and the turn's own.

    A_E compares the rewards of the group's attempts, each counted once however many turns it has.
    A_S compares the discounted returns of all turns of the group before which the agent saw the
    same; a turn that is alone in that has 0. Both less the mean, or over the deviation too. Needs
    groups of at least 2.

    Example:
        Attempt a sees s0, s1 and is given 0, 1; b sees s0, s2, s1 and is given nothing. Discount
        0.9, norm "mean": a's turns get 0.95 and 1, b's -0.95, -0.5 and -1.

        >>> Gigpo(discount=0.95, state_weight=1.0, norm="mean")

    """

    discount: Annotated[float, Between(0, 1)] = 0.95
    """What a reward counts one turn earlier."""
    state_weight: Annotated[float, Finite(), AtLeast(0)] = 1.0
    """Weight of the turn's own advantage."""
    norm: Literal["mean", "std"] = "mean"
    """mean: less the mean of what is compared; std: over its deviation too."""

    def estimate(self, batch: TokenBatch) -> Floats:
        """Return each turn's advantage at all its tokens."""
        if batch.turn_states is None:
            raise InvariantError("GiGPO compares what agents saw; this policy's batch has none")
        states = np.unique(batch.turn_states, return_inverse=True)[1]
        episodes = compare(batch.rewards, batch.groups, self.norm)[batch.turn_owners]
        turns = compare(turn_returns(batch, self.discount), states, self.norm)
        return (episodes + self.state_weight * turns)[batch.turns]
