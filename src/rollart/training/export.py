"""The policy for others: a Hugging Face model directory, or a version in the weight store.

    config.json, model*.safetensors, tokenizer files   the model, adapters merged; for anything
    adapter/                                           the adapters alone, as peft reads them

Both see whole tensors under Hugging Face's names, whatever was trained on how many ranks. Tensors
of a sharded policy are gathered one at a time and released before the next, so no rank ever holds
more than its part of the model and the largest tensor. Gathering is a collective: all ranks go
through all tensors, also when the disk or the store refuses in the middle, so none waits forever.
"""

import importlib
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoTokenizer

from rollart.errors import StorageError
from rollart.plugins import STORE_OPENER
from rollart.ports import Array, WeightStore
from rollart.training.distributed.process_group import told_to_all
from rollart.training.policy import Policy
from rollart.training.tensor_files import Division, Draft, drafted
from rollart.types import ArraySpec, Version

ADAPTER_DIRECTORY = "adapter"
ADAPTER_STEM = "adapter_model"
_TOKENIZER_FILES = (
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "*.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
)


def export_model(policy: Policy, directory: Path) -> None:
    """Write the policy as a model directory, replacing the one of that name only at the end."""
    with drafted(directory, world=policy.world, what="model") as draft:
        write_model(policy, draft)


def write_model(policy: Policy, draft: Draft) -> None:
    """Write weights, configuration and tokenizer into a draft."""
    if policy.is_plain:
        draft.first(lambda: policy.model.save_pretrained(draft.path))
    else:
        _write_parts(policy, draft)
    draft.first(lambda: _copy_tokenizer(policy.source, draft.path))


def _write_parts(policy: Policy, draft: Draft) -> None:
    """Write what transformers would, each rank its part; and the adapters, if there are any."""
    model, tuning, rank = policy.model, policy.tuning, policy.world.rank
    stored = {
        name: value
        for key, value in (*model.named_parameters(), *model.named_buffers())
        if (name := tuning.model_name(key)) is not None
    }
    kept = {tuning.model_name(key) for key in model.state_dict()}
    sizes = {name: value.numel() for name, value in stored.items() if name in kept}
    division = Division(sizes, ranks=policy.world.size)
    own = division.take(tuning.weights(model), rank=rank)
    draft.each(lambda: division.write(own, draft.path, "model", rank))
    total_bytes = sum(size * stored[name].element_size() for name, size in sizes.items())

    def describe() -> None:
        division.write_index(draft.path, "model", total_bytes=total_bytes)
        model.config.save_pretrained(draft.path)
        if model.can_generate():
            model.generation_config.save_pretrained(draft.path)

    draft.first(describe)
    if tuning.has_adapters:
        _write_adapters(policy, draft)


def _write_adapters(policy: Policy, draft: Draft) -> None:
    matrices = {
        name: value.cpu().contiguous() for name, value in policy.tuning.adapter(policy.model)
    }
    directory = draft.path / ADAPTER_DIRECTORY

    def write() -> None:
        directory.mkdir()
        save_file(matrices, directory / f"{ADAPTER_STEM}.safetensors", metadata={"format": "pt"})
        policy.tuning.write_config(directory, base=policy.source)

    draft.first(write)


def _copy_tokenizer(source: str, target: Path) -> None:
    """Put the source's tokenizer files beside the weights."""
    if Path(source).is_dir():
        for pattern in _TOKENIZER_FILES:
            for path in sorted(Path(source).glob(pattern)):
                if path.is_file():
                    shutil.copyfile(path, target / path.name)
    else:
        AutoTokenizer.from_pretrained(source).save_pretrained(target)


_FLOAT32 = "<f4"


def open_store(store: WeightStore | Mapping[str, Any] | None) -> WeightStore | None:
    """Return the given store, or open the one that options describe.

    The module that opens stores is found by name, because adapters do not import each other.
    """
    if not isinstance(store, Mapping):
        return store
    module, name = STORE_OPENER.split(":")
    opener: Callable[..., WeightStore] = getattr(importlib.import_module(module), name)
    return opener(**store)


def publish_weights(policy: Policy, store: WeightStore | None, version: Version) -> None:
    """Put a policy's weights into the store of the first rank, in fp32, by Hugging Face name."""
    tensors = policy.tuning.weights(policy.model)
    with told_to_all(policy.world, StorageError):
        try:
            if store is not None:
                store.stream(version, _specs(policy), arrays_of(tensors))
        finally:
            for _ in tensors:  # gathering a tensor is every rank's affair
                pass


def arrays_of(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Array]]:
    """Yield tensors as arrays in fp32."""
    for name, value in tensors:
        yield name, value.float().cpu().numpy()


def _specs(policy: Policy) -> dict[str, ArraySpec]:
    """Return what will come, in order: `Trainable.weights` goes through the same tensors."""
    return {
        name: ArraySpec(shape=tuple(value.shape), dtype=_FLOAT32)
        for key, value in policy.model.state_dict().items()
        if (name := policy.tuning.model_name(key)) is not None
    }
