"""The tasks of a config as the runtime needs them: the stream, and a setup per kind."""

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import cast

from rollart.config import Config, TaskOptions
from rollart.control.episode import Limits
from rollart.control.tasks import TaskKind, TaskMix
from rollart.envs.loading import load_env_class, make_env
from rollart.errors import ConfigError
from rollart.ports import Env
from rollart.runtime.env_manager import Setup
from rollart.runtime.seat import Timeouts
from rollart.seeds import derive_seed
from rollart.types import Sampling

_TRAINING, _HELD_OUT = 1, 2


def task_streams(config: Config) -> tuple[TaskMix, TaskMix]:
    """Return the stream of training tasks and that of held-out ones; each says so to the env."""
    kinds = [
        TaskKind(name=name, domain=task.domain or name, weight=task.weight)
        for name, task in config.tasks.items()
    ]
    seed = config.run.seed
    return (
        TaskMix(kinds, seed=derive_seed(seed, _TRAINING), split="train"),
        TaskMix(kinds, seed=derive_seed(seed, _HELD_OUT), split="test"),
    )


def make_setups(config: Config, sampling: Sampling) -> Mapping[str, Setup]:
    """Return how each kind of task is run; wrong names and options are told here."""
    return {name: _setup(name, task, sampling) for name, task in config.tasks.items()}


def _setup(name: str, task: TaskOptions, sampling: Sampling) -> Setup:
    env_class = load_env_class(task.env)
    make = _maker(task, takes_slot="slot" in inspect.signature(env_class).parameters)
    make(0)
    return Setup(
        make=make,
        parse=_load_parser(name, task.parser),
        system=getattr(env_class, "system_prompt", ""),
        limits=Limits(max_turns=task.max_turns, max_tokens=task.max_tokens),
        sampling=replace(sampling),
        timeouts=Timeouts(
            reset_s=task.reset_timeout_s,
            step_s=task.step_timeout_s,
            episode_s=task.episode_timeout_s,
        ),
    )


def _maker(task: TaskOptions, *, takes_slot: bool) -> Callable[[int], Env]:
    def make(slot: int) -> Env:
        options = {"slot": slot} if takes_slot else {}
        return make_env(task.env, options={**task.options, **options})

    return make


def _load_parser(name: str, target: str) -> Callable[[str], str]:
    if not target:
        return str.strip
    module, _, function = target.partition(":")
    field = f"tasks.{name}.parser"
    try:
        parser = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        raise ConfigError(field, target, f"cannot be imported: {error}") from error
    except AttributeError:
        raise ConfigError(field, target, f"module {module} has no {function}") from None
    if not callable(parser):
        raise ConfigError(field, target, "is not a function")
    return cast("Callable[[str], str]", parser)
