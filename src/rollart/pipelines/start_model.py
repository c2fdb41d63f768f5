"""The model a run starts from: a checkpoint as it is, or a tiny one built and warm-started here.

Tiny models are cached by everything that determines them, the files of their environments included
(but not what those import), so the second run starts at once. A resumed run finds the model it
began with again: its tokenizer belongs to the weights in the checkpoint, its own weights are what
KL is measured against and what adapters are added to.
"""

import asyncio
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rollart.config import Config, TaskOptions
from rollart.envs.registry import env_source, make_env
from rollart.envs.trial import (
    BaselinePlayer,
    NoisyPlayer,
    Play,
    RandomPlayer,
    Watch,
    play,
    run_watched,
)
from rollart.errors import ConfigError, EnvError, UserError, describe_error
from rollart.inference.renderer import ChatRenderer
from rollart.models.architecture import check_weights, read_architecture, resolve_config
from rollart.models.files import reported_as
from rollart.models.loader import find_device, resolve
from rollart.models.options import ModelOptions
from rollart.models.tiny import build_tiny
from rollart.models.tokenizer import build_tokenizer, load_tokenizer
from rollart.models.warm_start import Demonstration, demonstrate, warm_start
from rollart.ports import Env
from rollart.seeds import derive_seed
from rollart.training.options import LoraOptions
from rollart.types import Json, open_chat

_RECIPE = 1
"""Raised when the same options would give other weights than before."""
_CORPUS_PLAYS = 64

Say = Callable[[str], None]


def prepare_model(config: Config, say: Say) -> Path:
    """Return the directory of the checkpoint training starts from."""
    size = config.model.tiny_size
    if size is None:
        return resolve(config.model.path)
    wanted, base = tiny_directory(config), _untrained_directory(config)
    if wanted.exists():
        say(f"model: built for these tasks earlier, in {wanted}")
        return wanted
    if not base.exists():
        say(f"building a {size} model and its tokenizer in {base}")
        tokenizer = build_tokenizer(_corpus(config))
        build_tiny(size, directory=base, seed=config.model.seed, tokenizer=tokenizer)
    if config.model.warm_start:
        say(f"warm start from {config.model.warm_start_episodes} plays, cached in {wanted}")
        renderer = ChatRenderer(load_tokenizer(base))
        warm_start(
            base,
            _demonstrations(config, renderer),
            options=config.model,
            directory_out=wanted,
            on_progress=_Reporter(say),
        )
    return wanted


def tiny_directory(config: Config) -> Path:
    """Return where the tiny model of a config is, or will be once it is built."""
    if not config.model.warm_start:
        return _untrained_directory(config)
    key = _key(config, _warm_options(config.model))
    return config.model.cache_directory / f"warm-{config.model.tiny_size}-{key}"


def check_model(directory: Path, *, named: str, lora: LoraOptions | None = None) -> None:
    """Refuse a model that the engine or the trainer would refuse later, by what it was named."""
    with reported_as(named, directory):
        architecture = read_architecture(resolve_config(directory))
        check_weights(directory, architecture)
        load_tokenizer(directory)
    if lora is not None and architecture.tied:
        lora.check_tied_head("lm_head")


def check_devices(config: Config) -> None:
    """Refuse devices that this machine has not, where it is the one to have them."""
    if not config.ray.address:
        if config.engine.is_torch:
            find_device(config.engine.torch.device, field="engine.torch.device")
        find_device(config.training.device, field="training.device")


class _Reporter:
    """Says how far the warm start is, ten times in all."""

    def __init__(self, say: Say) -> None:
        self._say = say

    def __call__(self, done: int, total: int, loss: float) -> None:
        if done == total or done % max(1, total // 10) == 0:
            self._say(f"warm start: step {done}/{total}, loss {loss:.3f}")


def _untrained_directory(config: Config) -> Path:
    key = _key(config, [config.model.seed])
    return config.model.cache_directory / f"tiny-{config.model.tiny_size}-{key}"


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


def _corpus(config: Config) -> list[str]:
    """Return the texts of a few plays of each task, and its system prompt."""
    texts: list[str] = []
    for name, task in config.tasks.items():
        system, plays = _played(name, task, RandomPlayer(), seeds=range(_CORPUS_PLAYS))
        texts.append(system)
        texts += [text for each in plays for text in (*each.observations, *each.actions)]
    return texts


def _demonstrations(config: Config, renderer: ChatRenderer) -> list[Demonstration]:
    player = NoisyPlayer(noise=config.model.warm_start_noise)
    shares = _shares(config.tasks, config.model.warm_start_episodes)
    shown: list[Demonstration] = []
    for position, (name, task) in enumerate(config.tasks.items()):
        numbers = range(shares[name])
        seeds = [derive_seed(config.model.seed, position, each) % 2**31 for each in numbers]
        system, plays = _played(name, task, player, seeds=seeds)
        firsts = {each.observations[0] for each in plays[:_CORPUS_PLAYS]}
        prompts = [len(renderer.start(open_chat(system, each))) for each in firsts]
        _check_room(name, task, max(prompts, default=0))
        shown += [
            demonstrate(
                renderer, system=system, observations=each.observations, actions=each.actions
            )
            for each in plays
        ]
    return shown


def _check_room(name: str, task: TaskOptions, prompt_tokens: int) -> None:
    """Refuse before the warm start what would leave no room for an action after it."""
    if prompt_tokens >= task.max_tokens:
        fix = f"the first prompt alone takes {prompt_tokens} tokens: allow more"
        raise ConfigError(f"tasks.{name}.max_tokens", task.max_tokens, fix)


def _played(
    name: str, task: TaskOptions, player: BaselinePlayer, *, seeds: Sequence[int]
) -> tuple[str, list[Play]]:
    """Play games of a task; return its system prompt and the games.

    An error of the environment is reported as one the user can fix.
    """
    watch = Watch(reset_s=task.reset_timeout_s, step_s=task.step_timeout_s)

    def make() -> Env:
        return make_env(task.env, options=task.options)

    async def play_all(env: Env) -> tuple[str, list[Play]]:
        plays = [
            await play(env, player, seed=seed, index=index, max_turns=task.max_turns, watch=watch)
            for index, seed in enumerate(seeds)
        ]
        return getattr(env, "system_prompt", ""), plays

    try:
        return run_watched(watch, make, play_all)
    except UserError:
        raise
    except (Exception, SystemExit, asyncio.CancelledError) as error:
        said = str(error) if isinstance(error, EnvError) else describe_error(error)
        fix = f"a game played to build the tiny model failed: {said}"
        raise ConfigError(f"tasks.{name}.env", task.env, fix) from error


START = "start"
"""Key of the checkpoint note that names the directory of the run's start model."""
_TOKENIZER = "tokenizer.json"


def find_model(config: Config, checkpoint: Path, notes: Mapping[str, Json], say: Say) -> Path:
    """Return the directory of the run's start model.

    It is looked up rather than built again: its tokenizer belongs to the checkpoint's weights, and
    its own weights are the KL reference and the base of LoRA adapters.
    """
    model = _find_tiny(config, notes)
    if model is None:
        model = prepare_model(config, say)
    held, wanted = model / _TOKENIZER, checkpoint / _TOKENIZER
    if held.is_file() and wanted.is_file() and held.read_bytes() != wanted.read_bytes():
        fix = f"the tokenizer of {model} differs from that of {checkpoint}"
        fix += ": use the model and tasks that the run started with"
        raise ConfigError("model.path", config.model.path, fix)
    return model


def _find_tiny(config: Config, notes: Mapping[str, Json]) -> Path | None:
    """Return the tiny start model if it still exists; None if it must be built or is not tiny."""
    start = notes.get(START)
    if config.model.tiny_size is None or not isinstance(start, str):
        return None
    if Path(start).is_dir():
        return Path(start)
    if tiny_directory(config).name != Path(start).name:
        fix = f"the run started with {start}, which no longer exists, and what it was built from "
        fix += "([model], [tasks] or the environments' files) has changed: undo the change or "
        fix += "restore the directory"
        raise ConfigError("model.path", config.model.path, fix)
    return None
