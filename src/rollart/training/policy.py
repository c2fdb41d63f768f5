"""The policy: the model being trained, what of it learns, and the ranks it is divided over.

A rank joins the others last: whatever is wrong with a model or an option fails on every rank by
itself, before anyone waits for anyone.
"""

from dataclasses import dataclass

from torch.distributed.fsdp import FSDPModule

from rollart.seeds import derive_seed
from rollart.training.model import Model, load_model
from rollart.training.options import TrainingOptions
from rollart.training.sharding import recompute_layers, shard
from rollart.training.tuning import Tuning, open_tuning
from rollart.training.world import Place, World, join


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """The model being trained, and how."""

    model: Model
    reference: Model | None
    """The weights it began with, where the loss compares with them and nothing else holds them."""
    tuning: Tuning
    world: World
    source: str
    """Where the model came from: its tokenizer is there."""

    @property
    def is_plain(self) -> bool:
        """Whether the model is as transformers made it: one process, no adapters."""
        return not (isinstance(self.model, FSDPModule) or self.tuning.has_adapters)


def open_policy(source: str, options: TrainingOptions, place: Place) -> Policy:
    """Load a model for training, and divide it if the options say so."""
    tuning = open_tuning(options.lora)
    model = _load(source, options)
    tuning.prepare(model, seed=derive_seed(options.seed))
    if options.recompute:
        recompute_layers(model)
    is_compared = options.kl_coefficient > 0 and not tuning.has_adapters
    reference = _load(source, options) if is_compared else None
    world = World()
    if options.is_sharded:
        world = join(place, device=options.device, timeout_s=options.timeout_s)
        shard(model, world, options)
        if reference is not None:
            shard(reference, world, options)
    return Policy(model=model, reference=reference, tuning=tuning, world=world, source=source)


def _load(source: str, options: TrainingOptions) -> Model:
    device = "cpu" if options.is_sharded else options.device
    return load_model(source, dtype=options.dtype, device=device)
