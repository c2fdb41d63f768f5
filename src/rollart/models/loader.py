"""Loads Hugging Face checkpoints: finds or downloads them, reads weights, and picks devices."""

from pathlib import Path
from typing import Any

import numpy
import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from safetensors import SafetensorError, safe_open

from rollart.errors import ConfigError, ModelError
from rollart.models.files import local_model, weight_files


def resolve(path: str) -> Path:
    """Return a model's directory: a local one, or the hub's cache after a download."""
    return local_model(path) or _fetch(path)


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


def _fetch(name: str) -> Path:
    try:
        found = snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.model"])
    except HFValidationError:
        raise ModelError(f"model.path = {name!r}: neither a directory nor a hub name") from None
    except (OSError, HfHubHTTPError, ValueError) as error:
        reason = str(error).splitlines()[0]
        problem = f"no such directory, and the download from the model hub failed ({reason})"
        fix = "give the path of a local directory, such as ./my-model"
        raise ModelError(f"model.path = {name!r}: {problem}; {fix}") from error
    return Path(found)


def find_device(name: str, *, field: str) -> torch.device:
    """Return a torch device of this machine; an error names the config field."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # AssertionError: torch built without CUDA
        reason = str(error).splitlines()[0]
        fix = f"this machine has no such torch device: {reason}; cpu always works"
        raise ConfigError(field, name, fix) from error
    return device
