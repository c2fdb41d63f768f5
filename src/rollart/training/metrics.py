"""What a step measured, and the metrics it reports.

Sums run over sampled tokens of the minibatches that updated the weights; a minibatch dropped for
a non-finite loss or gradient adds only to `skipped`. Every metric is a finite float. What an
algorithm measures goes by its own names; those of `USUAL` are reported whatever it measures.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from rollart.training.batch import Batch
from rollart.training.distributed.process_group import ProcessGroup
from rollart.types.tokens import Floats

USUAL = (
    "loss",
    "policy_loss",
    "kl",
    "entropy",
    "clip_fraction",
    "ratio_max",
    "correction_mean",
    "correction_capped_fraction",
    "logprob_difference",
)


@dataclass(slots=True, kw_only=True)
class Measures:
    """Sums and maxima over the sampled tokens computed so far, by metric.

    Example:
        >>> Measures(sums={"loss": -0.2}, totals={"clip_fraction": 3.0}, tokens=60)

    """

    sums: dict[str, float] = field(default_factory=dict[str, float])
    """Weighted sums, each a share of the loss; reported per update."""
    totals: dict[str, float] = field(default_factory=dict[str, float])
    """Plain sums; reported per token."""
    maxima: dict[str, float] = field(default_factory=dict[str, float])
    tokens: int = 0

    def add(
        self,
        tokens: int,
        *,
        sums: Mapping[str, Tensor],
        totals: Mapping[str, Tensor],
        maxima: Mapping[str, Tensor],
    ) -> None:
        """Take in one micro-batch."""
        tensors = (*sums.values(), *totals.values(), *maxima.values())
        values: list[float] = torch.stack([each.detach().double() for each in tensors]).tolist()
        first, second = len(sums), len(sums) + len(totals)
        self.merge(
            Measures(
                sums=dict(zip(sums, values[:first], strict=True)),
                totals=dict(zip(totals, values[first:second], strict=True)),
                maxima=dict(zip(maxima, values[second:], strict=True)),
                tokens=tokens,
            )
        )

    def merge(self, other: "Measures") -> None:
        """Take in what was measured elsewhere."""
        self.tokens += other.tokens
        for name, value in other.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        for name, value in other.totals.items():
            self.totals[name] = self.totals.get(name, 0.0) + value
        for name, value in other.maxima.items():
            self.maxima[name] = max(self.maxima.get(name, 0.0), value)

    def gather(self, world: ProcessGroup) -> None:
        """Take in what all other ranks measured; every rank then holds the same."""
        if world.size == 1:
            return
        sums, totals, maxima = self._agree_on_names(world)
        added = [self.sums.get(name, 0.0) for name in sums]
        added += [self.totals.get(name, 0.0) for name in totals]
        *values, tokens = world.total([*added, float(self.tokens)])
        largest = world.largest([self.maxima.get(name, 0.0) for name in maxima])
        self.sums = dict(zip(sums, values[: len(sums)], strict=True))
        self.totals = dict(zip(totals, values[len(sums) :], strict=True))
        self.maxima = dict(zip(maxima, largest, strict=True))
        self.tokens = int(tokens)

    def _agree_on_names(self, world: ProcessGroup) -> list[list[str]]:
        """Return the names of all measures: a rank that had nothing to compute knows none."""
        own = (self.sums, self.totals, self.maxima)
        words = ";".join(",".join(each) for each in own) if self.tokens else ""
        parts = (world.first_words(words) or ";;").split(";")
        return [part.split(",") if part else [] for part in parts]


@dataclass(slots=True, kw_only=True)
class StepRecord:
    """What happened in one step.

    Example:
        >>> StepRecord(updates=1, grad_norm=0.7).metrics()["grad_norm"]
        0.7

    """

    measures: Measures = field(default_factory=Measures)
    updates: int = 0
    skipped: int = 0
    grad_norm: float = 0.0
    forward_s: float = 0.0
    backward_s: float = 0.0
    optimizer_s: float = 0.0
    moved: dict[str, float] = field(default_factory=dict[str, float])
    """What the guard says of the first update, if it looked."""

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the optimization itself, means over the updates made."""
        measures, updates = self.measures, max(self.updates, 1)
        tokens = max(measures.tokens, 1)
        means = {name: value / tokens for name, value in measures.totals.items()}
        squares = means.pop("correction_square", 0.0)
        if squares:
            means["effective_sample_share"] = means["correction_mean"] ** 2 / squares
        return {
            **dict.fromkeys(USUAL, 0.0),
            **{name: value / updates for name, value in measures.sums.items()},
            **means,
            **measures.maxima,
            "grad_norm": self.grad_norm / updates,
            "trained_tokens": float(measures.tokens),
            "updates": float(self.updates),
            "skipped": float(self.skipped),
            "forward_s": self.forward_s,
            "backward_s": self.backward_s,
            "optimizer_s": self.optimizer_s,
        }


def batch_metrics(batch: Batch, *, version: int) -> dict[str, float]:
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
        "staleness_mean": float(ages.mean()) if len(ages) else 0.0,
        "staleness_max": float(ages.max(initial=0)),
    }


def advantage_deviation(batch: Batch, advantages: Floats) -> float:
    """Return the standard deviation of the trajectories' mean advantages."""
    if not len(batch.rewards):
        return 0.0
    # A trajectory that sampled nothing still has the advantage its algorithm gave it.
    counted = batch.sampled | (batch.sampled_counts == 0)[batch.owners]
    owners = batch.owners[counted]
    sums = np.bincount(owners, weights=np.nan_to_num(advantages[counted]))
    return float((sums / np.bincount(owners)).std())
