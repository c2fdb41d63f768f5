"""The optimizer: AdamW over a model's parameters, and one safe update.

An update happens whole or not at all: if loss or gradient norm is not finite, weights and moments
stay as they are. Gradients are freed either way.
"""

import math
from typing import Any

import torch

from rollart.training.model import Model
from rollart.training.options import TrainingOptions
from rollart.training.sharding import whole


def make_optimizer(model: Model, options: TrainingOptions) -> torch.optim.AdamW:
    """Return AdamW in its fused form; only matrices decay."""
    parameters = [value for value in model.parameters() if value.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": options.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=options.learning_rate,
        betas=options.betas,
        eps=options.eps,
        fused=True,
    )


def apply_gradients(
    optimizer: torch.optim.Optimizer, *, learning_rate: float, max_norm: float, is_sound: bool
) -> float | None:
    """Clip and apply the gradients; return their norm before clipping, or None if refused."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    limit = max_norm if max_norm > 0 else math.inf
    norm = float(whole(torch.nn.utils.clip_grad_norm_(parameters, limit)))
    is_sound = is_sound and math.isfinite(norm)
    if is_sound:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm if is_sound else None
