"""The config section `training`: how a batch becomes an optimizer step.

Standard library only, so that a config is checked without loading torch. The formulas the fields
choose between are stated where they are computed: `advantage`, `loss`.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from rollart.errors import ConfigError

Advantage = Literal["grpo", "dr_grpo", "rloo", "reinforce"]
Aggregation = Literal["token_mean", "sequence_mean", "dr_grpo"]
Correction = Literal["decoupled", "none"]
DType = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """How a batch becomes an optimizer step."""

    learning_rate: float = 1e-4
    """AdamW's step size after the warm-up."""
    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly from near 0."""
    weight_decay: float = 0.0
    """AdamW's decoupled decay, on matrices only (not on norms and biases)."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay rates of the first and second moment."""
    eps: float = 1e-8
    """AdamW's denominator floor."""
    max_grad_norm: float = 1.0
    """Gradients are scaled down to this global norm; 0 leaves them alone."""
    advantage: Advantage = "grpo"
    """How rewards compare within a group: grpo (mean, std), dr_grpo (mean), rloo, reinforce."""
    aggregation: Aggregation = "token_mean"
    """What a token weighs: 1/tokens, 1/(sequences·its length), or 1/(sequences·constant_tokens)."""
    constant_tokens: int = 128
    """The constant length that aggregation = "dr_grpo" divides by."""
    clip_low: float = 0.2
    """The policy ratio is clipped below at 1 - clip_low."""
    clip_high: float = 0.28
    """The policy ratio is clipped above at 1 + clip_high."""
    correction: Correction = "decoupled"
    """decoupled: ratio to the step's first weights, stale tokens reweighted; none: plain PPO."""
    correction_cap: float = 2.0
    """Importance weights of stale tokens are truncated at this."""
    kl_coefficient: float = 0.0
    """Weight of the k3 divergence from the initial weights; 0 keeps no reference model."""
    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus."""
    epochs: int = 1
    """Passes over the batch per step."""
    minibatches: int = 1
    """Optimizer updates per pass, each on an equal share of the trajectories."""
    skip_zero_advantage: bool = True
    """Do not compute trajectories that cannot move the weights (advantage 0, no KL, no entropy)."""
    micro_batch_tokens: int = 2048
    """Most tokens, padding included, computed at once; small ones stay in the CPU cache."""
    row_tokens: int = 0
    """Length of the rows sequences are packed into; 0 is the longest sequence of the batch."""
    threads: int = 1
    """CPU threads of the trainer; one per busy role is best when cores are few."""
    dtype: DType = "float32"
    """Number format of the weights; bfloat16 only where the hardware multiplies it fast."""
    device: str = "cpu"
    """Where torch computes: cpu, cuda, cuda:1 …"""
    seed: int = 0
    """Seeds how trajectories are dealt to minibatches."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(self.betas))
        self._check_choices()
        self._check_numbers()

    def _check_choices(self) -> None:
        for name, choices in (
            ("advantage", Advantage),
            ("aggregation", Aggregation),
            ("correction", Correction),
            ("dtype", DType),
        ):
            value = getattr(self, name)
            if value not in get_args(choices):
                raise ConfigError(
                    f"training.{name}", value, f"must be one of {', '.join(get_args(choices))}"
                )
        if not self.device:
            raise ConfigError("training.device", self.device, "must name a torch device: cpu, cuda")

    def _check_numbers(self) -> None:
        for name in ("learning_rate", "eps", "correction_cap"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"training.{name}", value, "must be a finite number above 0")
        for name in (
            "weight_decay",
            "max_grad_norm",
            "clip_low",
            "clip_high",
            "kl_coefficient",
            "entropy_coefficient",
        ):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"training.{name}", value, "must be a finite number, at least 0")
        for name in ("constant_tokens", "epochs", "minibatches", "micro_batch_tokens", "threads"):
            value = getattr(self, name)
            if value < 1:
                raise ConfigError(f"training.{name}", value, "must be at least 1")
        for name in ("warmup_steps", "row_tokens", "seed"):
            value = getattr(self, name)
            if value < 0:
                raise ConfigError(f"training.{name}", value, "must be at least 0")
        if self.clip_low > 1:
            raise ConfigError("training.clip_low", self.clip_low, "must be at most 1")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError("training.betas", self.betas, "must be two numbers in [0, 1)")
