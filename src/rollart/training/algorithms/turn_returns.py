"""Turn returns: each turn is credited with the rewards from it on.

Step returns with a group norm (ROLL's `step_reinforce`, GiGPO's step part without states), or
segment returns without one (ROLL's `agentic_reinforce`).
"""

from dataclasses import dataclass, replace
from typing import Annotated

from rollart.constraints import Between
from rollart.training.algorithms.clipped_policy import ClippedPolicy
from rollart.training.algorithms.sequences import Norm, compare, turn_returns
from rollart.types.tokens import AlgorithmNeeds, Floats, TokenBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReturns(ClippedPolicy):
    """Turn returns: A = G = r + discount·G of the next turn, compared over all turns of the group.

    All tokens of a turn share it. r is what the environment gave for the turn; what the
    trajectory's reward has beyond that is given to the last turn. `norm = "none"` gives plain
    segment returns, and groups may then have one member.

    Example:
        Rewards 0, 0, 1 of three turns, discount 0.9, norm "none": 0.81, 0.9, 1.

        >>> TurnReturns(discount=0.95, norm="mean")

    """

    discount: Annotated[float, Between(0, 1)] = 0.95
    """What a reward counts one turn earlier."""
    norm: Norm = "std"
    """std: less the mean of the group's turns, over their deviation; mean: less it; none."""

    @property
    def needs(self) -> AlgorithmNeeds:
        """Groups to compare, unless nothing is."""
        own = ClippedPolicy.needs.__get__(self)
        return own if self.norm != "none" else replace(own, min_group_size=1)

    def estimate(self, batch: TokenBatch) -> Floats:
        """Return each turn's return at all its tokens."""
        returns = turn_returns(batch, self.discount)
        return compare(returns, batch.groups[batch.turn_owners], self.norm)[batch.turns]
