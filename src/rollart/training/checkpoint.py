"""Checkpoints: a Hugging Face model directory that also holds what training needs to go on.

    config.json, model.safetensors, tokenizer files   the model, usable by anything
    optimizer.safetensors                             AdamW's moments by parameter name
    trainer.json                                      version, steps, RNG state, fingerprint

A checkpoint is written beside its place and renamed into it, so a name always holds a whole
checkpoint: a full disk costs the new one, never the old. What is read is JSON and safetensors.
"""

import base64
import errno
import json
import os
import re
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoTokenizer

from rollart.errors import ModelError, StorageError
from rollart.training.model import Model, load_model

FORMAT = 1
_TOKENIZER_FILES = (
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "*.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
)
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where training stands, besides weights and moments."""

    version: int
    steps: int


def fingerprint(model: Model) -> dict[str, Any]:
    """Return what identifies a model's shape: its class and every parameter's dimensions."""
    return {
        "architecture": type(model).__name__,
        "parameters": {name: list(value.shape) for name, value in model.named_parameters()},
    }


def save_checkpoint(
    directory: Path,
    *,
    model: Model,
    source: str,
    optimizer: torch.optim.Optimizer,
    progress: Progress,
) -> None:
    """Write a whole checkpoint, replacing the one of that name only at the end."""
    parent = directory.absolute().parent
    fresh, old = parent / f".{directory.name}.new", parent / f".{directory.name}.old"
    with _storage(directory):
        parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir()
        try:
            model.save_pretrained(fresh)
            _copy_tokenizer(source, fresh)
            save_file(_moments(model, optimizer), fresh / "optimizer.safetensors")
            (fresh / "trainer.json").write_text(json.dumps(_record(model, progress), indent=1))
            _flush(fresh)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise
        shutil.rmtree(old, ignore_errors=True)
        if directory.exists():
            directory.rename(old)
        fresh.rename(directory)
        shutil.rmtree(old, ignore_errors=True)


def load_checkpoint(directory: Path, *, model: Model, optimizer: torch.optim.Optimizer) -> Progress:
    """Restore weights, moments and RNG state in place; nothing changes if anything is wrong."""
    old = directory.absolute().parent / f".{directory.name}.old"
    if not directory.exists() and old.exists():
        old.rename(directory)
    record = _read_record(directory)
    _check_same_shape(directory, record["fingerprint"], fingerprint(model))
    moments = _read_moments(directory, model)
    device, dtype = str(model.device), str(model.dtype).removeprefix("torch.")
    stored = load_model(str(directory), dtype=dtype, device=device)
    rng = torch.frombuffer(bytearray(base64.b64decode(record["rng"])), dtype=torch.uint8)
    model.load_state_dict(stored.state_dict())
    optimizer.state.clear()
    for name, parameter in model.named_parameters():
        if f"{name}/exp_avg" in moments:
            optimizer.state[parameter] = {
                key: moments[f"{name}/{key}"].to(parameter.device if key != "step" else "cpu")
                for key in ("step", "exp_avg", "exp_avg_sq")
            }
    torch.set_rng_state(rng)
    return Progress(version=record["version"], steps=record["steps"])


def _record(model: Model, progress: Progress) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": progress.version,
        "steps": progress.steps,
        "rng": base64.b64encode(torch.get_rng_state().numpy().tobytes()).decode(),
        "fingerprint": fingerprint(model),
    }


def _read_record(directory: Path) -> dict[str, Any]:
    path = directory / "trainer.json"
    try:
        record: dict[str, Any] = json.loads(path.read_text())
        found = {key: type(record[key]) for key in ("version", "steps", "rng", "fingerprint")}
        wanted = {"version": int, "steps": int, "rng": str, "fingerprint": dict}
        if record["format"] != FORMAT or found != wanted:
            raise ValueError(f"format {record['format']} with fields {found}")
    except FileNotFoundError as error:
        raise ModelError(f"{directory} is no checkpoint: it has no trainer.json") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(f"{path} is damaged ({error}); resume from another checkpoint") from error
    return record


def _moments(model: Model, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{name}/{key}": value.contiguous()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def _read_moments(directory: Path, model: Model) -> dict[str, Tensor]:
    path = directory / "optimizer.safetensors"
    try:
        moments = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path} is missing or damaged ({error}); resume from another") from error
    shapes = {name: value.shape for name, value in model.named_parameters()}
    for key, value in moments.items():
        name, _, part = key.rpartition("/")
        if name not in shapes or (part != "step" and value.shape != shapes[name]):
            raise ModelError(f"{path} holds {key} {tuple(value.shape)}, which this model has not")
    return moments


def _check_same_shape(
    directory: Path, stored: Mapping[str, Any], present: Mapping[str, Any]
) -> None:
    """Raise an error naming what differs between a checkpoint's model and this one."""
    start = f"the checkpoint {directory} is of another model:"
    if stored.get("architecture") != present["architecture"]:
        raise ModelError(f"{start} {stored.get('architecture')}, this is {present['architecture']}")
    theirs, ours = stored.get("parameters", {}), present["parameters"]
    for name in (*ours, *theirs):
        if theirs.get(name) != ours.get(name):
            raise ModelError(
                f"{start} its {name} is {_shape(theirs.get(name))}, "
                f"this model's is {_shape(ours.get(name))}"
            )


def _shape(dimensions: list[int] | None) -> str:
    return "absent" if dimensions is None else "×".join(map(str, dimensions))


def _copy_tokenizer(source: str, target: Path) -> None:
    """Put the source's tokenizer files beside the weights."""
    if Path(source).is_dir():
        for pattern in _TOKENIZER_FILES:
            for path in sorted(Path(source).glob(pattern)):
                if path.is_file():
                    shutil.copyfile(path, target / path.name)
    else:
        AutoTokenizer.from_pretrained(source).save_pretrained(target)


def _flush(directory: Path) -> None:
    """Make the files durable before their directory gets its name."""
    for path in (*directory.iterdir(), directory):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@contextmanager
def _storage(directory: Path) -> Generator[None]:
    """Turn a refusing disk into one message that names the directory and what is free."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        number = error.errno if isinstance(error, OSError) else _os_error(error)
        place = next(path for path in directory.absolute().parents if path.exists())
        free = shutil.disk_usage(place).free
        why = "the disk is full" if number in _FULL else str(error)
        raise StorageError(
            f"cannot write the checkpoint {directory}: {why} ({free:,} bytes free in {place}); "
            "make room or choose another directory; the previous checkpoint is untouched"
        ) from error


def _os_error(error: SafetensorError) -> int | None:
    """Return the system's error number that safetensors keeps only in its message."""
    found = re.search(r"os error (\d+)", str(error))
    return int(found.group(1)) if found else None
