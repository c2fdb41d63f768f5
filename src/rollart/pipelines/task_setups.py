"""The tasks of a config as the runtime needs them: the streams, and a setup per kind.

Environment workers import this file, so it loads nothing that only the run's own process needs.
"""

from collections.abc import Mapping

from rollart.config import Config, TaskOptions
from rollart.config.checks import find_parser, find_player
from rollart.config.options import are_compared, check_rewards
from rollart.control.task_order import TaskKind, TaskMix
from rollart.envs.registry import load_env_class, make_env
from rollart.envs.trial import try_env
from rollart.rollout.env_manager import Setup, Unread
from rollart.rollout.env_slot import Timeouts
from rollart.seeds import derive_seed
from rollart.types import EpisodeLimits, Sampling

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
    """Return how each kind of task is run; wrong names and options raise a ConfigError."""
    return {name: _setup(name, task, sampling) for name, task in config.tasks.items()}


def _setup(name: str, task: TaskOptions, sampling: Sampling) -> Setup:
    try_env(task.env, options=task.options, limit_s=task.reset_timeout_s)
    parser = find_parser(task.parser, field=f"tasks.{name}.parser") if task.parser else None
    check_rewards(name, task.rewards)
    scoring = "group" if are_compared(task.rewards) else "each" if task.rewards else "env"
    return Setup(
        make=lambda slot: make_env(task.env, options=task.options, slot=slot),
        parse=parser,
        unread=Unread(then=task.unread, reward=task.unread_reward),
        player=find_player(name, task.player),
        system=getattr(load_env_class(task.env), "system_prompt", ""),
        limits=EpisodeLimits(max_turns=task.max_turns, max_tokens=task.max_tokens),
        sampling=sampling,
        timeouts=Timeouts(
            reset_s=task.reset_timeout_s,
            step_s=task.step_timeout_s,
            episode_s=task.episode_timeout_s,
        ),
        scoring=scoring,
    )
