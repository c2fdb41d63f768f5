"""Reading Hugging Face checkpoints: configuration and weights of a directory.

Only safetensors are read, never pickles. Whatever cannot be used raises a ModelError that says
what is missing and where.
"""

import json
from pathlib import Path
from typing import Any, cast

import numpy
import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from safetensors import SafetensorError, safe_open

from rollart.errors import ModelError
from rollart.models.paths import local_model

ARCHITECTURES = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
_INDEX = "model.safetensors.index.json"


def resolve(path: str) -> Path:
    """Return the directory of a model: a local one, or a hub name fetched to the hub's cache."""
    return local_model(path) or _fetch(path)


def load_config(directory: Path) -> dict[str, Any]:
    """Return config.json; its architecture is one the engine and trainer know."""
    config = _read_json(directory / "config.json")
    named = config.get("architectures") or ["none named"]
    if named[0] not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        raise ModelError(f"{directory}: architecture {named[0]} is not supported (known: {known})")
    return config


def load_weights(directory: Path) -> dict[str, "numpy.ndarray[Any, Any]"]:
    """Return all parameters by name; bf16 and fp16 become fp32, since numpy has no bf16."""
    weights: dict[str, numpy.ndarray[Any, Any]] = {}
    for file in weight_files(directory):
        try:
            with safe_open(file, framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118
                    tensor = opened.get_tensor(name)
                    weights[name] = tensor.to(torch.float32).numpy()
        except (SafetensorError, OSError) as error:
            raise ModelError(f"{file}: cannot be read as safetensors: {error}") from error
    return weights


def weight_files(directory: Path) -> list[Path]:
    """Return the files of a directory's weights; all of them are there."""
    single = directory / "model.safetensors"
    if single.is_file():
        return [single]
    index = directory / _INDEX
    if not index.is_file():
        raise ModelError(f"{directory}: no model.safetensors there (pickled weights are not read)")
    files = sorted(set(cast("dict[str, str]", _read_json(index)["weight_map"]).values()))
    missing = [name for name in files if not (directory / name).is_file()]
    if missing:
        raise ModelError(f"{directory}: {_INDEX} names {missing[0]}, which is not there")
    return [directory / name for name in files]


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(f"{file.parent}: no {file.name} there") from None
    except (OSError, ValueError) as error:
        raise ModelError(f"{file}: cannot be read: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{file}: must hold a JSON object")
    return cast("dict[str, Any]", value)


def _fetch(name: str) -> Path:
    try:
        found = snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.model"])
    except HFValidationError:
        raise ModelError(f"model.path = {name!r}: neither a directory nor a hub name") from None
    except (OSError, HfHubHTTPError, ValueError) as error:
        reason = str(error).splitlines()[0]
        fix = "no such directory, and the model hub does not give it"
        raise ModelError(f"model.path = {name!r}: {fix} ({reason})") from error
    return Path(found)
