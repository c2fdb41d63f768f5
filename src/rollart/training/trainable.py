"""Trainable: which weights a policy learns, and what they are called outside.

`AllWeights` trains the model's own. Adapters are in a module of their own (`lora`), which is loaded
by name, because it needs peft. Either yields the policy's weights whole, one tensor at a time and
under Hugging Face's names, so that engines and files never learn how it was trained. Where a model
is sharded, yielding is a collective: every rank goes through all of it.
"""

import importlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Protocol

from torch import Tensor

from rollart.errors import ConfigError
from rollart.plugins import LORA
from rollart.training.distributed.sharding import whole
from rollart.training.model import Model
from rollart.training.options import LoraOptions


class Trainable(Protocol):
    """What is trained of a model."""

    @property
    def has_adapters(self) -> bool:
        """Whether the model's own weights stay as they are and something beside them learns."""
        ...

    def prepare(self, model: Model, *, seed: int) -> None:
        """Make a loaded model ready to be trained."""
        ...

    def weights(self, model: Model) -> Iterator[tuple[str, Tensor]]:
        """Yield the policy's weights whole, under Hugging Face names."""
        ...

    def adapter(self, model: Model) -> Iterator[tuple[str, Tensor]]:
        """Yield the adapters whole, under the names of peft's files."""
        ...

    def stored_name(self, name: str) -> str | None:
        """Return what a parameter of the model is called in a checkpoint; None: it is not there."""
        ...

    def model_name(self, name: str) -> str | None:
        """Return the Hugging Face name of a parameter of the model; None: it is an adapter's."""
        ...

    def write_config(self, directory: Path, *, base: str) -> None:
        """Describe the adapters beside their file."""
        ...

    def as_base(self, model: Model) -> AbstractContextManager[None]:
        """Let a model with adapters compute without them."""
        ...

    def learning(self, model: Model, *, seed: int) -> AbstractContextManager[None]:
        """Let the model compute as it does in training."""
        ...


class AllWeights:
    """Every weight of the model is trained."""

    has_adapters = False

    def prepare(self, model: Model, *, seed: int) -> None:
        """Do nothing: a loaded model trains all of itself."""

    def weights(self, model: Model) -> Iterator[tuple[str, Tensor]]:
        """Yield the model's weights whole."""
        for name, value in model.state_dict().items():
            yield name, whole(value.detach())

    def adapter(self, model: Model) -> Iterator[tuple[str, Tensor]]:
        """Refuse: there is none."""
        raise ConfigError("training.lora.rank", 0, "there is no adapter: set it to at least 1")

    def stored_name(self, name: str) -> str | None:
        """Return the name itself."""
        return name

    def model_name(self, name: str) -> str | None:
        """Return the name itself."""
        return name

    def write_config(self, directory: Path, *, base: str) -> None:
        """Do nothing."""

    def as_base(self, model: Model) -> AbstractContextManager[None]:
        """Change nothing."""
        return nullcontext()

    def learning(self, model: Model, *, seed: int) -> AbstractContextManager[None]:
        """Change nothing."""
        return nullcontext()


def open_trainable(options: LoraOptions) -> Trainable:
    """Return the way of training that the options name."""
    if not options.rank:
        return AllWeights()
    try:
        module = importlib.import_module(LORA)
    except ModuleNotFoundError as error:
        if error.name != "peft":
            raise
        fix = "needs the package peft: pip install 'rollart[lora]', or set it to 0"
        raise ConfigError("training.lora.rank", options.rank, fix) from error
    return module.Adapters(options)
