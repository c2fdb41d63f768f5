"""The files of a model's directory: where it is, and which files it must have; loads no torch.

A model is a directory of this machine or a name on the model hub. Only safetensors count as
weights, never pickles, because loading a pickle can run code. A model that cannot be used raises a
ModelError that says what is missing and where.
"""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePath
from typing import Any, Literal, cast

from rollart.errors import ModelError
from rollart.models.options import TINY
from rollart.serialization.codec import CodecError, read_object

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_INDEX = "model.safetensors.index.json"
_TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json")


def check_files(directory: Path, *, named: str) -> None:
    """Raise ModelError if a directory lacks a file; the error uses the user's name for it."""
    with reported_as(named, directory):
        load_config(directory)
        weight_files(directory)
        check_tokenizer(directory)


@contextmanager
def reported_as(named: str, directory: Path) -> Generator[None]:
    """Make errors about a directory start with the name the user gave it."""
    try:
        yield
    except ModelError as error:
        problem = str(error).removeprefix(f"{directory}: ")
        raise ModelError(f"model.path = {named!r}: {problem}") from error


def load_config(directory: Path) -> dict[str, Any]:
    """Return config.json; raise ModelError if its architecture is not supported."""
    config = _read_json(directory / "config.json")
    named = config.get("architectures") or ["none named"]
    if named[0] not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ModelError(f"{directory}: architecture {named[0]} is not supported (known: {known})")
    check_extras(directory)
    return config


def check_extras(directory: Path) -> None:
    """Raise ModelError for what transformers would add to the weights and an engine would not."""
    file = directory / "config.json"
    config = _read_json(file) if file.is_file() else {}
    if (directory / "adapter_config.json").is_file():
        raise ModelError(
            f"{directory}: has adapter_config.json, so the trainer would add an adapter that the "
            "engine does not serve; merge it into the weights and remove the file"
        )
    for key in ("quantization_config", "transformers_weights"):
        if config.get(key):
            raise ModelError(
                f"{directory}: config.json has {key}: only plain weights in model.safetensors are "
                "read; save the model without it"
            )


def weight_files(directory: Path) -> list[Path]:
    """Return the weight files of a directory; raise ModelError if one is missing."""
    single = directory / "model.safetensors"
    if single.is_file():
        return [single]
    index = directory / _INDEX
    if not index.is_file():
        raise ModelError(f"{directory}: has no model.safetensors (pickled weights are not read)")
    try:
        files = indexed_files(_read_json(index))
    except ValueError as error:
        raise ModelError(f"{directory}: {_INDEX}: {error}") from error
    missing = [name for name in files if not (directory / name).is_file()]
    if missing:
        raise ModelError(f"{directory}: {_INDEX} names {missing[0]}, which does not exist")
    return [directory / name for name in files]


def indexed_files(index: Mapping[str, Any]) -> list[str]:
    """Return the files that an index of safetensors names; ValueError if one is elsewhere.

    Example:
        >>> indexed_files({"weight_map": {"a": "model-1.safetensors", "b": "model-1.safetensors"}})
        ['model-1.safetensors']

    """
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict):
        raise ValueError("weight_map must be an object")
    names = set(cast("dict[str, object]", weight_map).values())
    for name in names:
        path = PurePath(name) if isinstance(name, str) and name else None
        if path is None or path.is_absolute() or ".." in path.parts or "\0" in str(path):
            raise ValueError(f"weight_map names {name!r}, which is not a file of the directory")
    return sorted(cast("set[str]", names))


def check_tokenizer(directory: Path) -> None:
    """Raise ModelError if a directory has no tokenizer."""
    if not any((directory / name).is_file() for name in _TOKENIZERS):
        wanted = " or ".join(_TOKENIZERS)
        raise ModelError(f"{directory}: has no tokenizer ({wanted})")


def _read_json(file: Path) -> dict[str, Any]:
    try:
        return read_object(file)
    except CodecError as error:
        raise ModelError(f"{file.parent}: {error}") from error


Check = Literal["tensors", "adapters", "prefixes", "packing", "master_weights"]
"""Checks that keep engine and trainer from reading or computing a model differently."""
_unchecked: set[Check] = set()


def is_checked(name: Check) -> bool:
    """Say whether a check is on; all are, but where a test shows what would follow without."""
    return name not in _unchecked


@contextmanager
def without_checks(*names: Check) -> Generator[None]:
    """Turn checks off in this process, to show that the guard catches what they prevent.

    Example:
        >>> with without_checks("packing"):
        ...     trainer = TorchTrainer(model="models/leaky")

    """
    fresh = set(names) - _unchecked
    _unchecked.update(fresh)
    try:
        yield
    finally:
        _unchecked.difference_update(fresh)


_HUB_NAME_PARTS = 2


def local_model(path: str) -> Path | None:
    """Return the local directory of a path; None for a hub name or a tiny model."""
    if path.startswith(TINY):
        return None
    local = Path(path).expanduser()
    if local.is_dir():
        return local
    if local.exists():
        raise ModelError(f"model.path = {path!r}: is a file; give the directory of a checkpoint")
    looks_local = local.is_absolute() or path.startswith((".", "~")) or path.endswith("/")
    if looks_local or path.count("/") >= _HUB_NAME_PARTS or not path:
        raise ModelError(f"model.path = {path!r}: no such directory")
    return None
