"""Adapters: low-rank matrices trained beside frozen weights, through peft.

Only linear layers get one: W becomes W + (alpha / rank)·B·A, with B = 0 at the start, so a policy
begins as the model it is an adapter of. peft puts the matrices into the model in place; names are
its own within the model (`base_layer`, `lora_A.default`) and Hugging Face's outside.
"""

import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

from rollart.errors import ConfigError
from rollart.training.distributed.sharding import whole
from rollart.training.model import Model
from rollart.training.options import LoraOptions

_NAME = "default"
_PREFIX = "base_model.model."
"""What peft's files put before every name."""
_BASE = ".base_layer."


class Adapters:
    """Adapters are trained; the model's own weights are not."""

    has_adapters = True

    def __init__(self, options: LoraOptions) -> None:
        self._options = options
        self._config = LoraConfig(
            r=options.rank,
            lora_alpha=options.alpha,  # pyright: ignore[reportArgumentType]
            target_modules=list(options.targets),
            lora_dropout=options.dropout,
            bias="none",
            task_type="CAUSAL_LM",
        )

    def prepare(self, model: Model, *, seed: int) -> None:
        """Freeze a model and put adapters into it; the same seed gives the same adapters."""
        targets = list(self._options.targets)
        head = model.get_output_embeddings()
        if head is not None and head.weight is model.get_input_embeddings().weight:
            self._options.check_tied_head(
                next(name for name, module in model.named_modules() if module is head)
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            try:
                inject_adapter_in_model(self._config, model)
            except ValueError as error:
                fix = f"{type(model).__name__}: {str(error).splitlines()[0]}"
                raise ConfigError("training.lora.targets", targets, fix) from error
        for layer in _layers(model).values():
            if not isinstance(layer.base_layer, nn.Linear):
                fix = f"names a {type(layer.base_layer).__name__}: only linear layers can have one"
                raise ConfigError("training.lora.targets", targets, fix)
        for name, value in model.named_parameters():
            is_adapter = _is_adapter(name)
            value.requires_grad_(is_adapter)
            if is_adapter:  # beside bfloat16 weights too: small steps would be lost in it
                value.data = value.data.float()
        model.eval()

    def weights(self, model: Model) -> Iterator[tuple[str, Tensor]]:
        """Yield the model's weights whole, adapters merged in."""
        state: Mapping[str, Tensor] = model.state_dict()
        layers = _layers(model)
        for name, value in state.items():
            outside = self.model_name(name)
            if outside is None:
                continue
            full, stem = whole(value.detach()), name.removesuffix(f"{_BASE}weight")
            if stem in layers:
                down = whole(state[f"{stem}.lora_A.{_NAME}.weight"].detach()).float()
                up = whole(state[f"{stem}.lora_B.{_NAME}.weight"].detach()).float()
                full = full.float() + layers[stem].scaling[_NAME] * (up @ down)
            yield outside, full.to(value.dtype)

    def adapter(self, model: Model) -> Iterator[tuple[str, Tensor]]:
        """Yield the adapters' matrices whole, under the names of peft's files."""
        for name, value in model.named_parameters():
            stored = self.stored_name(name)
            if stored is not None:
                yield stored, whole(value.detach())

    def stored_name(self, name: str) -> str | None:
        """Return the name a matrix has in peft's files; frozen weights are not kept."""
        return _PREFIX + name.replace(f".{_NAME}.", ".") if _is_adapter(name) else None

    def model_name(self, name: str) -> str | None:
        """Return the Hugging Face name of a weight; adapters have none."""
        return None if _is_adapter(name) else name.replace(_BASE, ".")

    def write_config(self, directory: Path, *, base: str) -> None:
        """Write what peft needs to read the adapter beside it."""
        config: dict[str, Any] = self._config.to_dict() | {"base_model_name_or_path": base}
        for key, value in config.items():
            config[key] = sorted(value) if isinstance(value, set) else value
        (directory / "adapter_config.json").write_text(json.dumps(config, indent=1))

    @contextmanager
    def as_base(self, model: Model) -> Generator[None]:
        """Let the model compute as if it had no adapters: it is then its own reference."""
        layers = list(_layers(model).values())
        scales = [layer.scaling[_NAME] for layer in layers]
        for layer in layers:
            layer.scaling[_NAME] = 0.0
        try:
            yield
        finally:
            for layer, scale in zip(layers, scales, strict=True):
                layer.scaling[_NAME] = scale

    @contextmanager
    def learning(self, model: Model, *, seed: int) -> Generator[None]:
        """Let adapters drop inputs, by draws of this seed."""
        layers = [layer.lora_dropout for layer in _layers(model).values()]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            for layer in layers:
                layer.train()
            try:
                yield
            finally:
                for layer in layers:
                    layer.eval()


def _is_adapter(name: str) -> bool:
    return ".lora_" in name


def _layers(model: Model) -> dict[str, Any]:
    return {name: module for name, module in model.named_modules() if isinstance(module, LoraLayer)}
