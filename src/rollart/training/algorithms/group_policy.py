"""Losses that may be used with the advantages of GRPO, Dr. GRPO, RLOO or REINFORCE."""

from dataclasses import dataclass
from typing import Literal

from rollart.training.algorithms.corrections import CorrectedPolicy
from rollart.training.algorithms.dr_grpo import DrGrpo
from rollart.training.algorithms.grpo import Grpo
from rollart.training.algorithms.reinforce import Reinforce
from rollart.training.algorithms.rloo import Rloo
from rollart.types.tokens import Floats, TokenBatch

GroupAdvantage = Literal["grpo", "dr_grpo", "rloo", "reinforce"]
ADVANTAGES = {"grpo": Grpo(), "dr_grpo": DrGrpo(), "rloo": Rloo(), "reinforce": Reinforce()}
"""The algorithms whose advantages other losses may use, by the value of `advantage`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPolicy(CorrectedPolicy):
    """A corrected loss that takes its advantages from one of the group's baselines.

    Example:
        >>> class Plain(GroupPolicy):  # adds surrogate(terms, deltas)

    """

    advantage: GroupAdvantage = "grpo"
    """Whose advantages: those of grpo, dr_grpo, rloo or reinforce."""

    @property
    def least_members(self) -> int:
        """Fewest attempts at one task that the advantages compare."""
        return ADVANTAGES[self.advantage].min_group_size

    def estimate(self, batch: TokenBatch) -> Floats:
        """Return the advantages that `advantage` names, at all tokens."""
        return ADVANTAGES[self.advantage].estimate(batch)
