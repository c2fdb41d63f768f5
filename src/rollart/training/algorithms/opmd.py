"""OPMD: policy mirror descent as Kimi k1.5 trains (2025); verl calls it `dro`."""

from dataclasses import dataclass
from typing import Annotated, Literal

from rollart.constraints import AtLeast, Finite
from rollart.training.algorithms.corrections import Surrogate
from rollart.training.algorithms.group_policy import GroupAdvantage, GroupPolicy
from rollart.training.algorithms.sequences import sequence_sums
from rollart.types.tokens import LossTerms, Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Opmd(GroupPolicy):
    """OPMD: -A·logp + τ/2·Δ² with A = R - mean and Δ = logp - logp_proximal.

    `level = "sequence"` squares the sum of Δ over the sequence, as in the paper; with
    `aggregation = "constant"` and `constant_tokens = 1` the loss is then the paper's sum. Needs
    groups of at least 2.

    Example:
        A = 1, Δ = 0.5: the gradient to logp is -0.95.

        >>> Opmd(tau=0.1)

    """

    tau: Annotated[float, Finite(), AtLeast(0)] = 0.1
    """Weight of the squared log-ratio, which keeps the policy near the step's first weights."""
    level: Literal["token", "sequence"] = "token"
    """Whether the log-ratio of each token is squared or the sum of a sequence's."""
    advantage: GroupAdvantage = "dr_grpo"
    """Whose advantages; the paper's are those of dr_grpo."""

    def surrogate(self, terms: LossTerms, deltas: Tensor) -> Surrogate:
        """Return the log-probs weighed by advantage, and the square."""
        if self.level == "sequence":
            length = terms.owners.bincount()[terms.owners]
            squares = sequence_sums(deltas, terms.owners).square() / length
        else:
            squares = deltas.square()
        return Surrogate(losses=-terms.advantages * terms.logprobs + self.tau / 2 * squares)
