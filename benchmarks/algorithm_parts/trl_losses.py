"""TRL's own losses on the tensors that the product is given, and how far apart the two are.

`_compute_loss` of TRL's trainers is called as it is; only the log-probs come from the hand-made
batch instead of a model. Advantages are given, so each side computes the loss alone. Observations
between turns are TRL's `tool_mask`.
"""

from collections import defaultdict
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
from trl import GRPOTrainer
from trl.experimental.gmpo import GMPOTrainer

from benchmarks.algorithm_parts.batches import Attempt
from benchmarks.algorithm_parts.product import Errors, Product
from rollart.training.options import read_algorithm

LENGTH = 16
"""What TRL's `max_completion_length` is: longer than any attempt."""
CLIP = {"epsilon_low": 0.2, "epsilon_high": 0.28}
CASES: Mapping[str, tuple[str, Mapping[str, Any], Mapping[str, Any]]] = {
    "grpo": ("grpo", {"aggregation": "sequence_mean"}, {"loss_type": "grpo", **CLIP}),
    "bnpo": ("grpo", {"aggregation": "token_mean"}, {"loss_type": "bnpo", **CLIP}),
    "dr_grpo": (
        "dr_grpo",
        {"aggregation": "constant", "constant_tokens": LENGTH},
        {"loss_type": "dr_grpo", **CLIP},
    ),
    "dapo": ("dapo", {}, {"loss_type": "dapo", **CLIP}),
    "gspo": (
        "gspo",
        {"clip_low": 0.05, "clip_high": 0.08},
        {
            "loss_type": "grpo",
            "importance_sampling_level": "sequence",
            "epsilon_low": 0.05,
            "epsilon_high": 0.08,
        },
    ),
    "cispo": ("cispo", {"clip_high": 0.3}, {"loss_type": "cispo", "epsilon_high": 1.3}),
    "sapo": ("sapo", {}, {"loss_type": "sapo"}),
    "gmpo": ("gmpo", {"clip_log": 0.2}, {"epsilon_low": 0.2, "epsilon_high": 0.2}),
    "opsm": (
        "gspo",
        {"correction": "opsm", "correction_bound": 0.02, "aggregation": "token_mean"},
        {
            "loss_type": "bnpo",
            "importance_sampling_level": "sequence",
            "off_policy_mask_threshold": 0.02,
            "epsilon_low": 3e-4,
            "epsilon_high": 4e-4,
        },
    ),
}
"""By name: the product's algorithm and keys, and the attributes of TRL's trainer."""


def compare_with_trl(name: str, attempts: list[Attempt]) -> Errors:
    """Return how far loss and gradient are from TRL's."""
    kind, options, attributes = CASES[name]
    # TRL has one set of old log-probs: what it clips against is what drew the tokens.
    for token in (token for attempt in attempts for token in attempt.tokens):
        token.proximal = token.behaviour
    found = Product(read_algorithm({"type": kind, **options}), attempts, 2)
    trainer = _make(GMPOTrainer if name == "gmpo" else GRPOTrainer, attributes)
    inputs, logprobs = _inputs(attempts, found.advantages)
    trainer._get_per_token_logps_and_entropies = lambda *_, **__: (  # type: ignore[method-assign]
        logprobs,
        torch.zeros_like(logprobs),
        None,
    )
    loss = trainer._compute_loss(None, inputs)
    loss.backward()
    assert logprobs.grad is not None
    slopes = logprobs.grad[inputs["tool_mask"].bool()].tolist()
    gaps = [abs(mine - theirs) for mine, theirs in zip(found.gradients, slopes, strict=True)]
    return Errors(value=abs(found.total - loss.item()), gradient=max(gaps))


def _make(trainer_class: Any, attributes: Mapping[str, Any]) -> Any:
    """Return a trainer that has what `_compute_loss` reads, and no model."""
    trainer = trainer_class.__new__(trainer_class)
    usual = {
        "aux_loss_enabled": False,
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "importance_sampling_level": "token",
        "beta": 0.0,
        "loss_type": "grpo",
        "use_vllm": False,
        "vllm_importance_sampling_correction": False,
        "max_completion_length": LENGTH,
        "current_gradient_accumulation_steps": 1,
        "_entropy_bonus_enabled": False,
        "_metrics": {"train": defaultdict(list)},
        "model": SimpleNamespace(training=True),
        "accelerator": SimpleNamespace(
            num_processes=1,
            gather=lambda tensor: tensor,
            gather_for_metrics=lambda tensor: tensor,
            reduce=lambda tensor, reduction: tensor,
        ),
        "args": SimpleNamespace(
            delta=None,
            steps_per_generation=1,
            sapo_temperature_pos=1.0,
            sapo_temperature_neg=1.05,
            use_bias_correction_kl=False,
        ),
    }
    for name, value in {**usual, **attributes}.items():
        setattr(trainer, name, value)
    return trainer


def _inputs(
    attempts: list[Attempt], advantages: list[float]
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Lay attempts out as TRL has them: one padded row each, observations masked."""
    shape = (len(attempts), LENGTH)
    mask, sampled = torch.zeros(shape), torch.zeros(shape)
    logprobs, old = (torch.zeros(shape, dtype=torch.float64) for _ in range(2))
    given = iter(advantages)
    per_row: list[float] = []
    for row, attempt in enumerate(attempts):
        column, own = 0, [next(given) for _ in attempt.tokens]
        per_row.append(own[0] if own else 0.0)
        for number, step in enumerate(attempt.steps):
            column += step.prompt if number else 0  # the first prompt is no part of a completion
            for token in step.tokens:
                sampled[row, column] = 1
                logprobs[row, column], old[row, column] = token.logp, token.behaviour
                column += 1
        mask[row, :column] = 1
    ids = torch.zeros(shape, dtype=torch.int64)
    inputs = {
        "prompt_ids": ids[:, :1],
        "prompt_mask": ids[:, :1],
        "completion_ids": ids,
        "completion_mask": mask.double(),
        "tool_mask": sampled.double(),
        "advantages": torch.tensor(per_row, dtype=torch.float64),
        "old_per_token_logps": old,
        "num_items_in_batch": sampled.sum(),
    }
    return inputs, logprobs.requires_grad_()
