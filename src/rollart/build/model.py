"""The model a run starts from: a checkpoint as it is, or a tiny one built and warm-started here.

Tiny models are cached by everything that determines them, the files of their environments included
(but not what those import), so the second run starts at once.
"""

import asyncio
import hashlib
import json
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path

from rollart.config import Config, TaskOptions
from rollart.envs.loading import close_env, env_source, make_env
from rollart.envs.players import NoisyPlayer, Play, Player, RandomPlayer, play
from rollart.errors import ConfigError, EnvError, UserError
from rollart.models.demonstrations import Demonstration, demonstrate
from rollart.models.loading import resolve
from rollart.models.options import ModelOptions
from rollart.models.renderer import ChatRenderer
from rollart.models.tiny import build_tiny
from rollart.models.tokenizer import build_tokenizer
from rollart.models.tokenizer_loading import load_tokenizer
from rollart.models.warm_start import warm_start
from rollart.ports import Env
from rollart.seeds import derive_seed
from rollart.types import Json

_RECIPE = 1
"""Raised when the same options would give other weights than before."""
_CORPUS_PLAYS = 64
_TRAINING: dict[str, Json] = {"split": "train"}

Say = Callable[[str], None]


def prepare_model(config: Config, say: Say) -> Path:
    """Return the directory of the checkpoint training starts from."""
    size = config.model.tiny_size
    if size is None:
        return resolve(config.model.path)
    cache = config.model.cache_directory
    base = cache / f"tiny-{size}-{_key(config, [config.model.seed])}"
    if not base.exists():
        say(f"building a {size} model and its tokenizer in {base}")
        tokenizer = build_tokenizer(asyncio.run(_corpus(config)))
        build_tiny(size, directory=base, seed=config.model.seed, tokenizer=tokenizer)
    if not config.model.warm_start:
        return base
    warm = cache / f"warm-{size}-{_key(config, _warm_options(config.model))}"
    if not warm.exists():
        say(f"warm start from {config.model.warm_start_episodes} plays, cached in {warm}")
        renderer = ChatRenderer(load_tokenizer(base))
        warm_start(
            base,
            asyncio.run(_demonstrations(config, renderer)),
            options=config.model,
            directory_out=warm,
            on_progress=_Reporter(say),
        )
    return warm


class _Reporter:
    """Says how far the warm start is, ten times in all."""

    def __init__(self, say: Say) -> None:
        self._say = say

    def __call__(self, done: int, total: int, loss: float) -> None:
        if done == total or done % max(1, total // 10) == 0:
            self._say(f"warm start: step {done}/{total}, loss {loss:.3f}")


def _warm_options(options: ModelOptions) -> list[object]:
    values = asdict(options)
    return [values[name] for name in sorted(values) if name not in ("path", "shape", "cache")]


def _key(config: Config, extra: Iterable[object]) -> str:
    tasks = {
        name: [task.env, env_source(task.env), dict(task.options), task.max_turns, task.weight]
        for name, task in config.tasks.items()
    }
    text = json.dumps([_RECIPE, config.model.path, tasks, list(extra)], default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _shares(tasks: Mapping[str, TaskOptions], count: int) -> dict[str, int]:
    total = sum(task.weight for task in tasks.values())
    return {name: round(count * task.weight / total) for name, task in tasks.items()}


async def _corpus(config: Config) -> list[str]:
    """Return the texts of a few plays of each task, and its system prompt."""
    texts: list[str] = []
    for name, task in config.tasks.items():
        async with _opened(task) as env:
            texts.append(getattr(env, "system_prompt", ""))
            for seed in range(_CORPUS_PLAYS):
                record = await _play(env, RandomPlayer(), name=name, task=task, seed=seed)
                texts += [*record.observations, *record.actions]
    return texts


async def _demonstrations(config: Config, renderer: ChatRenderer) -> list[Demonstration]:
    player = NoisyPlayer(noise=config.model.noise)
    shares = _shares(config.tasks, config.model.warm_start_episodes)
    shown: list[Demonstration] = []
    for position, (name, task) in enumerate(config.tasks.items()):
        async with _opened(task) as env:
            for episode in range(shares[name]):
                seed = derive_seed(config.model.seed, position, episode) % 2**31
                record = await _play(env, player, name=name, task=task, seed=seed)
                shown.append(
                    demonstrate(
                        renderer,
                        system=getattr(env, "system_prompt", ""),
                        observations=record.observations,
                        actions=record.actions,
                    )
                )
    return shown


@asynccontextmanager
async def _opened(task: TaskOptions) -> AsyncGenerator[Env]:
    env = make_env(task.env, options=task.options)
    try:
        yield env
    finally:
        await close_env(env)


async def _play(env: Env, player: Player, *, name: str, task: TaskOptions, seed: int) -> Play:
    """Play an episode; whatever the environment does wrong is the user's to mend."""
    try:
        return await play(env, player, seed=seed, max_turns=task.max_turns, task=_TRAINING)
    except UserError:
        raise
    except Exception as error:
        said = str(error) if isinstance(error, EnvError) else f"{type(error).__name__}: {error}"
        fix = f"a game played to build the tiny model failed: {said}"
        raise ConfigError(f"tasks.{name}.env", task.env, fix) from error
