"""The policy as the trainer sees it: log-probs of sampled tokens under a Hugging Face model.

Any causal language model that `AutoModelForCausalLM` loads. The model's own forward runs, so logit
scaling or capping is kept; hooks leave out what no sampled token depends on: the output layer, and
the last layer's feed-forward where it is a plain gated one, compute only the positions that predict
a sampled token. Dropout is off: behaviour and training log-probs must be those of one function.

Log-probs are of the distribution that tokens are drawn from: at the sampling temperature, cut down
by top-p, top-k and min-p and scaled up to 1 again (`TokenFilters`). So the policy that is trained
is the policy that plays.

Packed rows get a block-diagonal causal mask. Models that mix attention kinds build their own masks
from the restarting positions; models with recurrent layers are never packed. A row with one
sequence needs no mask: padding is at its end, where no causal model looks.
"""

import inspect
import math
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from rollart.errors import ModelError, first_line
from rollart.models.loader import find_device
from rollart.training.packing import MicroBatch

Model = Any
"""A Hugging Face causal language model; transformers has no usable types."""
_LEAST = torch.finfo(torch.float32).min


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFilters:
    """What is cut off the distributions that N tokens are drawn from, as the engine's sampler does.

    Which tokens are kept is decided by the present weights: the kept ones are those this policy
    could draw. The token that was drawn is always among them, so that one which older weights drew
    has a small probability instead of none.

    Example:
        >>> filters = TokenFilters(
        ...     top_p=torch.tensor([0.7]), top_k=torch.tensor([0]), min_p=torch.tensor([0.0])
        ... )
        >>> filters.apply(torch.tensor([[0.5, 0.3, 0.2]]).log(), torch.tensor([0])).exp()
        tensor([[0.6250, 0.3750, 0.0000]])

    """

    top_p: Tensor
    top_k: Tensor
    min_p: Tensor

    def __getitem__(self, places: Tensor) -> "TokenFilters":
        """Return the filters of some tokens."""
        return TokenFilters(
            top_p=self.top_p[places], top_k=self.top_k[places], min_p=self.min_p[places]
        )

    def apply(self, logprobs: Tensor, targets: Tensor) -> Tensor:
        """Return [N, vocabulary] log-probs of what is left: -inf where a token was cut off."""
        kept = self._kept(logprobs.detach()).scatter(1, targets.unsqueeze(-1), True)
        return torch.log_softmax(logprobs.masked_fill(~kept, -math.inf), dim=-1)

    def _kept(self, logprobs: Tensor) -> Tensor:
        top_p, top_k, min_p = (each.unsqueeze(-1) for each in (self.top_p, self.top_k, self.min_p))
        ranked, ids = logprobs.exp().sort(dim=-1, descending=True, stable=True)
        ranks = torch.arange(ranked.shape[-1], device=ranked.device)
        is_cut = (top_k > 0) & (ranks >= top_k)
        ranked = ranked.masked_fill(is_cut, 0)
        sums = ranked.cumsum(-1, dtype=torch.float64)
        before = sums.roll(1, -1)
        before[:, 0] = 0
        is_cut = is_cut | ((top_p < 1) & (before >= sums[:, -1:] * top_p))
        is_cut = is_cut | (ranked < ranked[:, :1] * min_p)
        return torch.empty_like(is_cut).scatter_(1, ids, ~is_cut)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenScores:
    """What the model says of N sampled tokens.

    Example:
        >>> score(model, micro, targets=targets, temperatures=ones, entropy_grad=False).logprobs
        tensor([-1.31, -0.02, -4.75])

    """

    logprobs: Tensor
    """[N] log-probability of each."""
    entropies: Tensor
    """[N] entropy of the distribution each was drawn from, in nats."""


def load_model(path: str, *, dtype: str, device: str) -> Model:
    """Load a checkpoint directory (or hub name) for training."""
    transformers_logging.disable_progress_bar()
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path, dtype=getattr(torch, dtype), output_loading_info=True
        )
        model, report = loaded
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise ModelError(f"cannot load a model from {path}: {first_line(error)}") from error
    for problem in ("missing_keys", "mismatched_keys", "error_msgs"):
        if report.get(problem):
            names = ", ".join(sorted(str(name) for name in report[problem])[:3])
            raise ModelError(
                f"the checkpoint {path} does not fill its model ({problem}: {names}); "
                "it is damaged or of another architecture"
            )
    if model.get_output_embeddings() is None:
        raise ModelError(f"the model {path} has no output layer that can be trained")
    return model.to(find_device(device, field="training.device")).eval()


def is_packable(model: Model) -> bool:
    """Say whether attention alone mixes positions, so that masks can keep sequences apart."""
    takes_positions = "position_ids" in inspect.signature(model.forward).parameters
    return takes_positions and _layer_kinds(model) <= {"full_attention", "sliding_attention"}


def attention_cost(model: Model) -> float:
    """Return what a pair of positions costs, in units of one token's matrix products."""
    config = model.config.get_text_config()
    layers, width = getattr(config, "num_hidden_layers", 0), getattr(config, "hidden_size", 0)
    return 2 * layers * width / sum(value.numel() for value in model.parameters())


def score(
    model: Model,
    micro: MicroBatch,
    *,
    targets: Tensor,
    temperatures: Tensor,
    entropy_grad: bool,
    filters: TokenFilters | None = None,
) -> TokenScores:
    """Return log-probs and entropies of the micro-batch's sampled tokens, in fp32."""
    logits = _logits(model, micro).float() / temperatures.unsqueeze(-1)
    logprobs = torch.log_softmax(logits, dim=-1)
    if filters is not None:
        logprobs = filters.apply(logprobs, targets)
    with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
        # What was cut off has log-prob -inf and adds nothing, and 0 · -inf would be no number.
        finite = logprobs if filters is None else logprobs.clamp(min=_LEAST)
        entropies = -(logprobs.exp() * finite).sum(-1)
    chosen = logprobs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return TokenScores(logprobs=chosen, entropies=entropies)


def _logits(model: Model, micro: MicroBatch) -> Tensor:
    """Return the logits [N, vocabulary] at the positions before sampled tokens."""
    device = model.device
    arguments: dict[str, Tensor] = {}
    if micro.is_packed:
        arguments["position_ids"] = torch.from_numpy(micro.positions).to(device)
        if _layer_kinds(model) == {"full_attention"}:
            segments = torch.from_numpy(micro.segments).to(device)
            arguments["attention_mask"] = block_mask(segments, dtype=model.dtype)
    tokens = torch.from_numpy(micro.tokens).to(device)
    with _only(model, torch.from_numpy(micro.predictors).to(device)):
        return model(input_ids=tokens, use_cache=False, **arguments).logits


@contextmanager
def _only(model: Model, predictors: Tensor) -> Generator[None]:
    """Let the model's end compute these flat positions alone."""

    def keep(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (inputs[0].flatten(0, -2)[predictors],)

    def scatter(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        spread = output.new_zeros(shape[0].numel() // shape[0][-1], shape[0][-1])
        return spread.index_copy(0, predictors, output).view(shape[0])

    shape: list[torch.Size] = []
    hooks = [model.get_output_embeddings().register_forward_pre_hook(keep)]
    last = _last_feed_forward(model)
    if last is not None:
        hooks.append(
            last.register_forward_pre_hook(lambda _, inputs: shape.append(inputs[0].shape))
        )
        hooks.append(last.register_forward_pre_hook(keep))
        hooks.append(last.register_forward_hook(scatter))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _last_feed_forward(model: Model) -> nn.Module | None:
    """Return the last layer's feed-forward if it maps each position by itself in three products."""
    layers = getattr(model.base_model, "layers", None)
    module = getattr(layers[-1], "mlp", None) if layers else None
    parts = [getattr(module, name, None) for name in ("gate_proj", "up_proj", "down_proj")]
    linear = (isinstance(getattr(part, "base_layer", part), nn.Linear) for part in parts)
    return module if all(linear) else None


def block_mask(segments: Tensor, *, dtype: torch.dtype) -> Tensor:
    """Return what is added to attention scores, [R, 1, L, L]: 0 on a segment's own past."""
    visible = (segments.unsqueeze(-1) == segments.unsqueeze(-2)).tril()
    mask = torch.zeros(visible.shape, dtype=dtype, device=segments.device)
    return mask.masked_fill_(~visible, torch.finfo(dtype).min).unsqueeze(1)


def _layer_kinds(model: Model) -> set[str]:
    config = model.config.get_text_config()
    kinds = getattr(config, "layer_types", None)
    if kinds:
        return set(kinds)
    recurrent = getattr(model, "_is_stateful", False)
    windowed = getattr(config, "sliding_window", None)
    return {"recurrent" if recurrent else "sliding_attention" if windowed else "full_attention"}
