"""Evaluation of a run's newest checkpoint, or of any checkpoint, on held-out episodes."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from rollart.build.assembly import open_engines
from rollart.build.parts import make_evaluator
from rollart.build.tasks import make_setups
from rollart.build.wholeness import check_model_files
from rollart.config import Config, add_import_paths, check_names, load_config
from rollart.errors import UserError
from rollart.runtime.checkpointing import find_checkpoint
from rollart.runtime.ending import run as run_to_end
from rollart.types import Json, Sampling, Version


def evaluate(
    path: Path, overrides: Sequence[str], episodes: int | None, temperature: float | None
) -> dict[str, Json]:
    """Play held-out episodes with a checkpoint's weights and return the figures."""
    checkpoint = find_checkpoint(path)
    file = _config_of(path, checkpoint)
    config = load_config(file, overrides)
    add_import_paths(config)
    check_names(config, is_trained=False)
    check_model_files(checkpoint)
    sampling = config.sampling
    if temperature is not None:
        sampling = replace(sampling, temperature=temperature)
    count = config.run.evaluate_episodes if episodes is None else episodes
    figures = run_to_end(_evaluate(config, checkpoint, sampling, count))
    return {"checkpoint": str(checkpoint), "episodes": count, **figures}


def _config_of(path: Path, checkpoint: Path) -> Path:
    for directory in (path, *checkpoint.parents):
        if (directory / "config.toml").is_file():
            return directory / "config.toml"
    raise UserError(f"{path}: found no config.toml of the run beside or above it")


async def _evaluate(
    config: Config, checkpoint: Path, sampling: Sampling, episodes: int
) -> dict[str, float]:
    setups = make_setups(config, sampling)
    async with open_engines(config, model=checkpoint, version=Version(0), store=None) as engines:
        evaluator = make_evaluator(config, setups, engines)
        try:
            measured = await evaluator.run(episodes)
        finally:
            await evaluator.close()
    if not measured.trajectories:
        reason = measured.last_failure
        raise UserError(f"all {episodes} episodes failed, nothing was measured; the last: {reason}")
    return measured.figures
