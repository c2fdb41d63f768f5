"""Checkpoints: a Hugging Face model directory that also holds what training needs to continue.

    config.json, model*.safetensors, tokenizer files   the model, usable by anything
    adapter/                                           the adapters, where they are what is trained
    optimizer*.safetensors                             AdamW's moments by parameter name
    trainer.json                                       version, steps, RNG state, fingerprint

Nothing in it depends on how many ranks wrote it, so any number of ranks can resume from it: weights
and moments lie whole in files of which every rank reads its rows (`tensor_files`). A name always
holds a whole checkpoint, and nothing is restored unless every rank could read its part. What is
read is JSON and safetensors.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rollart.errors import DamagedError, ModelError
from rollart.training.distributed.process_group import told_to_all
from rollart.training.distributed.sharding import Rows, architecture, local, whole
from rollart.training.export import ADAPTER_DIRECTORY, ADAPTER_STEM, write_model
from rollart.training.model import Model, load_model
from rollart.training.policy import Policy
from rollart.training.tensor_files import Division, TensorReader, drafted, recover

FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingProgress:
    """Where training stands, besides weights and moments.

    Example:
        >>> TrainingProgress(version=7, steps=7)

    """

    version: int
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Restored:
    """What a rank read of a checkpoint, checked and not yet applied."""

    progress: TrainingProgress
    rng: Tensor
    weights: Mapping[str, Tensor]
    moments: Mapping[str, Tensor]


def fingerprint(model: Model) -> dict[str, Any]:
    """Return what identifies a model's shape: its class and every parameter's dimensions."""
    return {
        "architecture": architecture(model),
        "parameters": {name: list(value.shape) for name, value in model.named_parameters()},
    }


def save_checkpoint(
    directory: Path, *, policy: Policy, optimizer: torch.optim.Optimizer, progress: TrainingProgress
) -> None:
    """Write a whole checkpoint, replacing the one of that name only at the end."""
    model, rank = policy.model, policy.world.rank
    with drafted(directory, world=policy.world, what="checkpoint") as draft:
        write_model(policy, draft)
        sizes = {name: value.numel() for name, value in _moments(model, optimizer)}
        division = Division(sizes, ranks=policy.world.size)
        gathered = ((name, whole(value)) for name, value in _moments(model, optimizer))
        own = division.take(gathered, rank=rank)
        draft.each(lambda: division.write(own, draft.path, "optimizer", rank))

        def describe() -> None:
            total_bytes = sum(value.nbytes for _, value in _moments(model, optimizer))
            division.write_index(draft.path, "optimizer", total_bytes=total_bytes)
            record = json.dumps(_record(model, progress), indent=1)
            (draft.path / "trainer.json").write_text(record)

        draft.first(describe)


def load_checkpoint(
    directory: Path, *, policy: Policy, optimizer: torch.optim.Optimizer
) -> TrainingProgress:
    """Restore weights, moments and RNG state in place; nothing changes if anything is wrong."""
    world, model = policy.world, policy.model
    recover(directory, world=world)
    with told_to_all(world, ModelError):
        restored = _read(directory, policy)
    _apply(restored, policy)
    optimizer.state.clear()
    for name, parameter in model.named_parameters():
        if f"{name}/exp_avg" in restored.moments:
            optimizer.state[parameter] = {
                key: _placed(restored.moments[f"{name}/{key}"], parameter)
                for key in ("step", "exp_avg", "exp_avg_sq")
            }
    torch.set_rng_state(restored.rng)
    return restored.progress


def _read(directory: Path, policy: Policy) -> _Restored:
    record = _read_record(directory)
    _check_same_shape(directory, record["fingerprint"], fingerprint(policy.model))
    rng = bytearray(base64.b64decode(record["rng"]))
    return _Restored(
        progress=TrainingProgress(version=record["version"], steps=record["steps"]),
        rng=torch.frombuffer(rng, dtype=torch.uint8),
        moments=_read_moments(directory, policy.model),
        weights=_read_weights(directory, policy),
    )


def _read_weights(directory: Path, policy: Policy) -> dict[str, Tensor]:
    """Return this rank's rows of what is trained, by the model's own names."""
    model, tuning = policy.model, policy.tuning
    if policy.is_plain:
        dtype = str(model.dtype).removeprefix("torch.")
        return load_model(str(directory), dtype=dtype, device=str(model.device)).state_dict()
    place = (directory, "model")
    if tuning.has_adapters:
        place = (directory / ADAPTER_DIRECTORY, ADAPTER_STEM)
    with TensorReader(*place) as reader:
        return {
            name: reader.read(stored, Rows.of(value), shape=tuple(value.shape))
            for name, value in model.named_parameters()
            if (stored := tuning.stored_name(name)) is not None
        }


def _read_moments(directory: Path, model: Model) -> dict[str, Tensor]:
    parameters = dict(model.named_parameters())
    moments: dict[str, Tensor] = {}
    with TensorReader(directory, "optimizer") as reader:
        for key in reader.names:
            name, _, part = key.rpartition("/")
            shape = reader.shape(key)
            if name not in parameters or (part != "step" and shape != parameters[name].shape):
                raise ModelError(
                    f"{directory / 'optimizer.safetensors'} holds {key} {shape}, "
                    "which this model has not"
                )
            moments[key] = reader.read(key, Rows.of(parameters[name]), shape=shape)
    return moments


@torch.no_grad()
def _apply(restored: _Restored, policy: Policy) -> None:
    if policy.is_plain:
        policy.model.load_state_dict(restored.weights)
        return
    for name, parameter in policy.model.named_parameters():
        if name in restored.weights:
            local(parameter).copy_(restored.weights[name])


def _placed(moment: Tensor, parameter: Tensor) -> Tensor:
    """Return a moment where its parameter is and divided as it is; a count of steps is whole."""
    if not moment.dim() and parameter.dim():
        return moment.to(parameter.device)
    result = torch.empty_like(parameter, requires_grad=False)
    local(result).copy_(moment)
    return result


def _moments(model: Model, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            yield f"{name}/{key}", value


def _record(model: Model, progress: TrainingProgress) -> dict[str, Any]:
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
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged ({error}); resume from another") from error
    return record


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
