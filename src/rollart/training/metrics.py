"""What a step measured, and the metrics it reports.

Sums run over sampled tokens of the minibatches that updated the weights; a minibatch dropped for
a non-finite loss or gradient adds only to `skipped`. Every metric is a finite float.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rollart.training.batch import Batch
from rollart.training.distributed.process_group import ProcessGroup

SUMS = ("loss", "policy_loss", "kl", "entropy", "clipped", "corrections", "capped")
MAXIMA = ("ratio", "drift")


@dataclass(slots=True, kw_only=True)
class Measures:
    """Sums and maxima over the sampled tokens computed so far."""

    sums: dict[str, float] = field(default_factory=dict[str, float])
    maxima: dict[str, float] = field(default_factory=dict[str, float])
    tokens: int = 0

    def add(self, tokens: int, sums: dict[str, Tensor], maxima: dict[str, Tensor]) -> None:
        """Take in one micro-batch."""
        values: list[float] = torch.stack(
            [value.detach().double() for value in (*sums.values(), *maxima.values())]
        ).tolist()
        self.merge(
            Measures(
                sums=dict(zip(sums, values[: len(sums)], strict=True)),
                maxima=dict(zip(maxima, values[len(sums) :], strict=True)),
                tokens=tokens,
            )
        )

    def merge(self, other: "Measures") -> None:
        """Take in what was measured elsewhere."""
        self.tokens += other.tokens
        for name, value in other.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        for name, value in other.maxima.items():
            self.maxima[name] = max(self.maxima.get(name, 0.0), value)

    def gather(self, world: ProcessGroup) -> None:
        """Take in what all other ranks measured; every rank then holds the same."""
        if world.size > 1:
            sums = [self.sums.get(name, 0.0) for name in SUMS]
            maxima = [self.maxima.get(name, 0.0) for name in MAXIMA]
            *sums, tokens = world.total([*sums, float(self.tokens)])
            self.sums = dict(zip(SUMS, sums, strict=True))
            self.maxima = dict(zip(MAXIMA, world.largest(maxima), strict=True))
            self.tokens = int(tokens)

    def per_token(self, name: str) -> float:
        """Return a sum per sampled token."""
        return self.sums.get(name, 0.0) / max(self.tokens, 1)


@dataclass(slots=True, kw_only=True)
class StepRecord:
    """What happened in one step."""

    measures: Measures = field(default_factory=Measures)
    updates: int = 0
    skipped: int = 0
    grad_norm: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    optimizer_s: float = 0.0

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the optimization itself, means over the updates made."""
        measures, updates = self.measures, max(self.updates, 1)
        return {
            "loss": measures.sums.get("loss", 0.0) / updates,
            "policy_loss": measures.sums.get("policy_loss", 0.0) / updates,
            "kl": measures.sums.get("kl", 0.0) / updates,
            "entropy": measures.per_token("entropy"),
            "clip_fraction": measures.per_token("clipped"),
            "ratio_max": measures.maxima.get("ratio", 0.0),
            "correction_mean": measures.per_token("corrections"),
            "correction_capped_fraction": measures.per_token("capped"),
            "logprob_difference": measures.maxima.get("drift", 0.0),
            "grad_norm": self.grad_norm / updates,
            "trained_tokens": float(measures.tokens),
            "updates": float(self.updates),
            "skipped": float(self.skipped),
            "forward_s": self.forward_s,
            "backward_s": self.backward_s,
            "optimizer_s": self.optimizer_s,
        }


def batch_metrics(
    batch: Batch, advantages: NDArray[np.float64], *, version: int
) -> dict[str, float]:
    """Return the metrics that depend on the batch alone; staleness is per sampled token."""
    trajectories = len(batch.rewards)
    ages = version - batch.versions[batch.sampled].astype(np.int64)
    return {
        "tokens": float(len(batch.tokens)),
        "sampled_tokens": float(len(ages)),
        "trajectories": float(trajectories),
        "groups": float(batch.groups.max(initial=-1) + 1),
        "reward_mean": float(batch.rewards.mean()) if trajectories else 0.0,
        "success_mean": float(batch.successes.mean()) if trajectories else 0.0,
        "advantage_std": float(advantages.std()) if trajectories else 0.0,
        "staleness_mean": float(ages.mean()) if len(ages) else 0.0,
        "staleness_max": float(ages.max(initial=0)),
    }
