"""A trainer step written out by hand: what `TorchTrainer.step` must report and do.

Log-softmax, entropy, advantages, every term of the loss and its gradient with respect to the logits
are plain Python on float64 lists, AdamW is numpy; torch only runs the model, one sequence at a
time, and carries the gradient of the logits on to the weights.
"""

import math
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from rollart.training.algorithms.grpo import Grpo
from rollart.training.batch import Batch, deal_minibatches, decode
from rollart.training.options import TrainingOptions


@dataclass(kw_only=True)
class Token:
    """A sampled token: what does not change during a step."""

    sequence: int
    predictor: int
    id: int
    behaviour: float
    is_current: bool
    advantage: float
    proximal: float = 0.0
    reference: float = 0.0


@dataclass(kw_only=True)
class Seen:
    """What the updates of a step met with, so that a test can say what it covered."""

    sums: Counter[str] = field(default_factory=Counter)
    ratio_max: float = 0.0
    drift_max: float = 0.0
    grad_norms: list[float] = field(default_factory=list)
    clipped_above: int = 0
    clipped_below: int = 0
    between: int = 0
    """Tokens of positive advantage that only the wider upper bound leaves alone."""


class WrittenOut:
    def __init__(self, checkpoint, options: TrainingOptions, rules: Grpo) -> None:
        self._options, self._rules = options, rules
        self._model = _load(checkpoint)
        self._first = _load(checkpoint)
        self._parameters = dict(self._model.named_parameters())
        self._moments = dict.fromkeys(self._parameters, (0.0, 0.0))
        self._version = self._updates = 0

    def weights(self) -> dict[str, np.ndarray]:
        return {name: value.detach().numpy() for name, value in self._parameters.items()}

    def logprobs(self, arrays) -> list[float]:
        """Return the log-probs of all sampled tokens under the weights held, in order."""
        batch = decode(arrays)
        tokens = self._tokens(batch)
        self._score(batch, tokens, self._model, "proximal")
        return [token.proximal for own in tokens.values() for token in own]

    def step(self, arrays) -> tuple[dict[str, float], Seen]:
        options, batch, seen = self._options, decode(arrays), Seen()
        tokens = self._tokens(batch)
        self._score(batch, tokens, self._model, "proximal")
        self._score(batch, tokens, self._first, "reference")
        moving = np.array([bool(own) for own in tokens.values()])
        shares = deal_minibatches(moving, options, version=self._version)
        for share in shares:
            self._update(batch, tokens, share.tolist(), seen)
        self._version += 1
        sums, count = seen.sums, len(shares)
        return {
            "loss": sums["loss"] / count,
            "policy_loss": sums["policy"] / count,
            "kl": sums["kl"] / count,
            "entropy": sums["entropy"] / sums["tokens"],
            "clip_fraction": (seen.clipped_above + seen.clipped_below) / sums["tokens"],
            "ratio_max": seen.ratio_max,
            "correction_mean": sums["corrections"] / sums["tokens"],
            "correction_capped_fraction": sums["capped"] / sums["tokens"],
            "logprob_difference": seen.drift_max,
            "grad_norm": sum(seen.grad_norms) / count,
            "trained_tokens": sums["tokens"],
            "updates": count,
            "skipped": 0.0,
        }, seen

    def _tokens(self, batch: Batch) -> dict[int, list[Token]]:
        rewards, groups = batch.rewards.tolist(), batch.groups.tolist()
        tokens: dict[int, list[Token]] = {}
        for sequence, start in enumerate(batch.offsets[:-1].tolist()):
            members = [r for r, g in zip(rewards, groups, strict=True) if g == groups[sequence]]
            places = [
                place
                for place in range(start, int(batch.offsets[sequence + 1]))
                if batch.sampled[place]
            ]
            tokens[sequence] = [
                Token(
                    sequence=sequence,
                    predictor=place - start - 1,
                    id=int(batch.tokens[place]),
                    behaviour=float(batch.logprobs[place]),
                    is_current=int(batch.versions[place]) == self._version,
                    advantage=_grpo(rewards[sequence], members),
                )
                for place in places
            ]
        return tokens

    def _score(self, batch: Batch, tokens: dict[int, list[Token]], model, field_name: str) -> None:
        for sequence, own in tokens.items():
            rows = _logits(model, batch, sequence).tolist()
            for token in own:
                row = _log_softmax(rows[token.predictor], batch.temperatures[sequence])
                setattr(token, field_name, row[token.id])

    def _update(
        self, batch: Batch, tokens: dict[int, list[Token]], share: list[int], seen: Seen
    ) -> None:
        total = sum(len(tokens[sequence]) for sequence in share)
        for sequence in share:
            if not tokens[sequence]:
                continue
            weight = {
                "token_mean": 1 / total,
                "sequence_mean": 1 / (len(share) * len(tokens[sequence])),
                "constant": 1 / (len(share) * self._rules.constant_tokens),
            }[self._rules.aggregation]
            logits = _logits(self._model, batch, sequence)
            rows = logits.tolist()
            slopes = [[0.0] * len(row) for row in rows]
            for token in tokens[sequence]:
                slopes[token.predictor] = self._token(
                    token, rows[token.predictor], batch.temperatures[sequence], weight, seen
                )
            logits.backward(torch.tensor(slopes, dtype=torch.float64))
        seen.grad_norms.append(self._apply())

    def _token(
        self, token: Token, row: list[float], temperature: float, weight: float, seen: Seen
    ) -> list[float]:
        """Book one token's terms; return the gradient of the loss with respect to its logits."""
        options, advantage = self._rules, token.advantage
        logs = _log_softmax(row, temperature)
        logp, entropy = logs[token.id], -sum(math.exp(each) * each for each in logs)
        is_decoupled = options.correction == "decoupled"
        proximal = token.proximal if is_decoupled else token.behaviour
        ratio = math.exp(logp - proximal)
        raw = math.exp(proximal - token.behaviour)
        correction = min(raw, options.correction_cap)
        low, high = 1 - options.clip_low, 1 + options.clip_high
        policy = -correction * min(ratio * advantage, min(max(ratio, low), high) * advantage)
        gap, share = token.reference - logp, correction * ratio
        kl = share * (math.exp(gap) - gap - 1)
        above, below = advantage > 0 and ratio > high, advantage < 0 and ratio < low
        seen.clipped_above += above
        seen.clipped_below += below
        seen.between += advantage > 0 and 1 + options.clip_low < ratio <= high
        seen.ratio_max = max(seen.ratio_max, ratio)
        if token.is_current:
            seen.drift_max = max(seen.drift_max, abs(token.proximal - token.behaviour))
        loss = policy + options.kl_coefficient * kl - options.entropy_coefficient * entropy
        seen.sums.update(
            {
                "loss": weight * loss,
                "policy": weight * policy,
                "kl": weight * kl,
                "entropy": entropy,
                "corrections": correction,
                "capped": raw > options.correction_cap,
                "tokens": 1,
            }
        )
        by_logp = 0.0 if above or below else -correction * advantage * ratio
        by_logp -= options.kl_coefficient * share * gap
        return [
            weight
            / temperature
            * (
                by_logp * ((index == token.id) - math.exp(each))
                + options.entropy_coefficient * math.exp(each) * (each + entropy)
            )
            for index, each in enumerate(logs)
        ]

    def _apply(self) -> float:
        """Clip the gradients and make one update of AdamW; return their norm."""
        options = self._options
        gradients = {name: value.grad.numpy() for name, value in self._parameters.items()}
        norm = math.sqrt(sum(float((each**2).sum()) for each in gradients.values()))
        scale = min(1.0, options.max_grad_norm / (norm + 1e-6))
        self._updates += 1
        (one, two), rate = options.betas, options.learning_rate
        for name, parameter in self._parameters.items():
            gradient, (mean, square) = gradients[name] * scale, self._moments[name]
            mean = one * mean + (1 - one) * gradient
            square = two * square + (1 - two) * gradient**2
            self._moments[name] = mean, square
            root = np.sqrt(square / (1 - two**self._updates)) + options.eps
            value = parameter.detach().numpy()
            value *= 1 - rate * (options.weight_decay if value.ndim > 1 else 0.0)
            value -= rate * mean / (1 - one**self._updates) / root
            parameter.grad = None
        return norm


def _load(checkpoint):
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float64).eval()


def _logits(model, batch: Batch, sequence: int) -> torch.Tensor:
    start, end = batch.offsets[sequence : sequence + 2].tolist()
    ids = torch.from_numpy(batch.tokens[start:end].astype(np.int64))
    return model(input_ids=ids[None]).logits[0]


def _log_softmax(row: list[float], temperature: float) -> list[float]:
    scaled = [each / temperature for each in row]
    top = max(scaled)
    total = top + math.log(sum(math.exp(each - top) for each in scaled))
    return [each - total for each in scaled]


def _grpo(reward: float, members: list[float]) -> float:
    mean = sum(members) / len(members)
    deviation = math.sqrt(sum((each - mean) ** 2 for each in members) / len(members))
    return (reward - mean) / (deviation + 1e-6)
