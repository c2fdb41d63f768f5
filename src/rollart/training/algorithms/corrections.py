"""Off-policy correction: what a token weighs that other weights drew than the step's first ones.

With log w = logp_proximal - logp_behaviour, both without gradient, the rules are

    none                 w = 1, and the ratio is to the behaviour policy: plain PPO
    decoupled, tis       min(w, correction_cap)
    icepop               w where correction_low ≤ w ≤ correction_high, else 0     usual 0.5 to 5
    sequence_tis         min(Πw, correction_cap), Π over the sequence
    sequence_rejection   Πw where it lies between the bounds, else 0              usual 0 to 2
    geometric_rejection  1 where exp(mean log w) does, else 0                     usual 0.99 to 1.01
    m2po                 w, but 0 for the tokens of largest (log w)², dropped over the whole batch
                         until the mean of the rest is at most correction_bound   usual 0.04
    opsm                 min(w, correction_cap), but 0 for sequences of A < 0 whose
                         mean(logp_behaviour - logp_θ) > correction_bound         usual 0.5

`decoupled` and `tis` are two names of one rule. Members whose sequence is rejected leave the
baselines: advantages are computed as if they had failed. Their tokens still count in the
denominators of the aggregation, as every token of weight 0 does. OPSM rejects by the advantage
itself, and so after the baselines. Rules that reject by the whole batch or the whole sequence need
the model's log-probs before the advantages: one more pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np

from rollart.constraints import AtLeast, Finite
from rollart.errors import ConfigError
from rollart.training.algorithms.policy_loss import PolicyLoss, PolicyPart
from rollart.training.algorithms.sequences import sequence_means, sequence_sums, without_members
from rollart.types.tokens import Flags, Floats, LossTerms, Tensor, TokenBatch

Correction = Literal[
    "none",
    "decoupled",
    "tis",
    "icepop",
    "sequence_tis",
    "sequence_rejection",
    "geometric_rejection",
    "m2po",
    "opsm",
]
_CAP = 2.0
_READS: Mapping[str, Mapping[str, float]] = {
    "none": {},
    "decoupled": {"cap": _CAP},
    "tis": {"cap": _CAP},
    "icepop": {"low": 0.5, "high": 5.0},
    "sequence_tis": {"cap": _CAP},
    "sequence_rejection": {"low": 0.0, "high": 2.0},
    "geometric_rejection": {"low": 0.99, "high": 1.01},
    "m2po": {"bound": 0.04},
    "opsm": {"bound": 0.5, "cap": _CAP},
}
"""What each rule reads of the keys correction_…, and the usual value."""
_REJECTED = "rejected_fraction"
"""The column of tokens that are rejected before the loss, and the metric of its mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surrogate:
    """What an algorithm makes of the ratios, before the correction weighs it.

    Example:
        >>> Surrogate(losses=-q * terms.advantages, means={"clip_fraction": q > 1.28})

    """

    losses: Tensor
    means: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])


@dataclass(frozen=True, slots=True, kw_only=True)
class CorrectedPolicy(PolicyLoss):
    """A loss on the ratio to the step's first weights, each token weighed for its age.

    Example:
        >>> class Plain(CorrectedPolicy):  # adds estimate(batch) and surrogate(terms, deltas)

    """

    correction: Correction = "decoupled"
    """How tokens of older weights are reweighed or rejected; none: plain PPO."""
    correction_cap: Annotated[float, Finite(), AtLeast(1, "what is on policy weighs 1")] = _CAP
    """Importance weights are truncated at this (decoupled, tis, sequence_tis, opsm)."""
    correction_low: Annotated[float | None, Finite(), AtLeast(0)] = None
    """Least weight that is kept (icepop, …_rejection); none: the rule's usual one."""
    correction_high: Annotated[float | None, Finite(), AtLeast(1, "1 is on policy")] = None
    """Largest weight that is kept (icepop, …_rejection); none: the rule's usual one."""
    correction_bound: Annotated[float | None, Finite(), AtLeast(0)] = None
    """Largest drift that is kept (m2po, opsm); none: the rule's usual one."""

    def __post_init__(self) -> None:
        PolicyLoss.__post_init__(self)
        for key in ("cap", "low", "high", "bound"):
            value = getattr(self, f"correction_{key}")
            # A run that switches the correction off may leave its cap in the file.
            is_cap_set = value != _CAP and self.correction != "none"
            is_set = is_cap_set if key == "cap" else value is not None
            if is_set and key not in _READS[self.correction]:
                readers = ", ".join(rule for rule, keys in _READS.items() if key in keys)
                fix = f'correction = "{self.correction}" does not read it; these do: {readers}'
                raise ConfigError(f"algorithm.correction_{key}", value, fix)

    @property
    def reads_scores(self) -> bool:
        """Whether the rule rejects by the whole batch, or members before the baselines."""
        return self.correction in ("sequence_rejection", "geometric_rejection", "m2po")

    def estimate(self, batch: TokenBatch) -> Floats:
        """Return the advantages of a batch without rejected members."""
        raise NotImplementedError

    def surrogate(self, terms: LossTerms, deltas: Tensor) -> Surrogate:
        """Return the loss of a token that is not stale; `deltas` are logp_θ - logp_proximal."""
        raise NotImplementedError

    def advantages(self, batch: TokenBatch) -> Floats:
        """Return the advantages of the members that the correction keeps; 0 for the others."""
        kept = self._kept_members(batch)
        if kept is None:
            return self.estimate(batch)
        tokens = kept[batch.owners]
        found = np.zeros(len(tokens))
        found[tokens] = self.estimate(without_members(batch, kept))
        return found

    def columns(self, batch: TokenBatch, advantages: Floats) -> Mapping[str, Floats]:
        """Return which tokens the correction rejects, where the whole batch decides that."""
        del advantages
        kept = self._kept_members(batch)
        if kept is not None:
            return {_REJECTED: (~kept)[batch.owners].astype(np.float64)}
        return {_REJECTED: self._dropped(batch)} if self.correction == "m2po" else {}

    def policy(self, terms: LossTerms) -> PolicyPart:
        """Return the surrogate, weighed by the correction, and what the correction did."""
        proximal = terms.behaviour if self.correction == "none" else terms.proximal
        deltas = terms.logprobs - proximal
        surrogate, ratios = self.surrogate(terms, deltas), deltas.detach().exp()
        drifts = (proximal - terms.behaviour).detach()
        weights, is_capped, is_rejected = self._weigh(terms, drifts)
        return PolicyPart(
            losses=weights * surrogate.losses,
            shares=weights * ratios,
            means={
                **surrogate.means,
                "correction_mean": weights,
                "correction_square": weights.square(),
                "correction_capped_fraction": is_capped,
                _REJECTED: is_rejected,
                "drift": (terms.proximal - terms.behaviour).detach().abs(),
            },
            maxima={"ratio_max": ratios},
        )

    def _limit(self, key: str) -> float:
        value = getattr(self, f"correction_{key}")
        return _READS[self.correction][key] if value is None else value

    def _kept_members(self, batch: TokenBatch) -> Flags | None:
        """Say which trajectories are kept; None if the rule rejects none before the baselines."""
        if self.correction not in ("sequence_rejection", "geometric_rejection"):
            return None
        drawn, count = batch.sampled, len(batch.rewards)
        logs = np.bincount(batch.owners[drawn], weights=_drifts(batch)[drawn], minlength=count)
        if self.correction == "geometric_rejection":
            logs = logs / np.maximum(batch.sampled_counts, 1)
        low, high = self._limit("low"), self._limit("high")
        return (logs >= np.log(low) if low else True) & (logs <= np.log(high))

    def _dropped(self, batch: TokenBatch) -> Floats:
        """Mark the tokens of largest (log w)², as many as it takes until the mean is small."""
        squares = np.where(batch.sampled, _drifts(batch) ** 2, -1.0)
        order = np.argsort(squares, kind="stable")[int((~batch.sampled).sum()) :]
        means = np.cumsum(squares[order]) / np.arange(1, len(order) + 1)
        # Sorted, the means of the first 1, 2, … never fall: what is too large is at the end.
        found = np.zeros(len(squares))
        found[order[means > self._limit("bound")]] = 1.0
        return found

    def _weigh(self, terms: LossTerms, drifts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return each token's weight, whether it was capped and whether it was rejected."""
        logs = sequence_sums(drifts, terms.owners) if "sequence" in self.correction else drifts
        raw = logs.exp()
        is_capped = rejected = raw.new_zeros(raw.shape).bool()
        match self.correction:
            case "none" | "decoupled" | "tis" | "sequence_tis" | "opsm":
                is_capped = raw > self.correction_cap
            case "icepop":
                rejected = (raw < self._limit("low")) | (raw > self._limit("high"))
            case "sequence_rejection" | "geometric_rejection" | "m2po":
                rejected = terms.columns[_REJECTED] > 0.5
        weights = raw.clamp(max=self.correction_cap) if "cap" in _READS[self.correction] else raw
        if self.correction == "geometric_rejection":
            weights = raw.new_ones(raw.shape)
        if self.correction == "opsm":
            gaps = sequence_means(terms.behaviour - terms.logprobs.detach(), terms.owners)
            rejected = (terms.advantages < 0) & (gaps > self._limit("bound"))
        return weights.masked_fill(rejected, 0.0), is_capped, rejected


def _drifts(batch: TokenBatch) -> Floats:
    assert batch.proximal is not None
    return batch.proximal.astype(np.float64) - batch.behaviour
