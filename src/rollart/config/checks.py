"""Checks before a run starts: what a config names exists, and its pools have room for its workers.

Loading a config imports none of the user's code. Here environments, parsers, reward functions and
engines are looked up, and each error names the key that the user wrote. What is legal but worth
knowing, such as training on draws from a part of the tokens, is described, not refused.
"""

import inspect
from collections.abc import Callable
from typing import Any

from rollart.config.loader import Layered, OptionBuilder
from rollart.config.options import check_rewards
from rollart.config.places import capacities, engine_places, local_engines, trainer_place
from rollart.config.schema import Config
from rollart.control.placement import Bindings
from rollart.envs.registry import refuse_method
from rollart.envs.trial import Suggesting, try_env
from rollart.errors import ConfigError, PlacementError, describe_error
from rollart.inference.factory import options_class
from rollart.models.options import LanguagePolicy
from rollart.plugins import find, load_object, name_of, split_name
from rollart.ports import Player
from rollart.rollout.env_contract import refuse_call
from rollart.training_ports import PolicyRuntime


def check_names(config: Config, *, is_trained: bool = True) -> None:
    """Make each task's environment once and find its parser, player and rewards.

    If it is to be trained on, see also that it can be demonstrated.
    """
    if split_name(config.weights.store):
        find("store", config.weights.store, field="weights.store")
    longest = getattr(engine_options(config), "max_length", None)
    for name, task in config.tasks.items():
        if longest is not None and task.max_tokens > longest:
            fix = f"must be at most engine.options.max_length ({longest}); lower it or raise that"
            raise ConfigError(f"tasks.{name}.max_tokens", task.max_tokens, fix)
        try:
            env = try_env(task.env, options=task.options, limit_s=task.reset_timeout_s)
        except ConfigError as error:
            key = "env" if error.field == "env.name" else error.field.removeprefix("env.")
            raise ConfigError(f"tasks.{name}.{key}", error.value, error.fix) from error
        is_tiny = isinstance(config.policy, LanguagePolicy) and config.model.needs_suggestions
        is_imitated = is_trained and is_tiny
        if is_imitated and not isinstance(env, Suggesting):
            fix = (
                "has no method suggest() -> str, whose actions the warm start of a tiny model "
                "imitates: add one, set model.warm_start=false, or set model.warm_start_noise=1 to "
                "imitate random actions"
            )
            raise ConfigError(f"tasks.{name}.env", task.env, fix)
        if is_imitated and (problem := refuse_method(type(env), "suggest", ())):
            raise ConfigError(f"tasks.{name}.env", task.env, problem)
        if task.parser:
            find_parser(task.parser, field=f"tasks.{name}.parser")
        find_player(name, task.player)
        check_rewards(name, task.rewards)


def engine_options(config: Config) -> Any:
    """Return the options of the config's engine, as its own class.

    Example:
        >>> engine_options(config).max_length  # engine.name = "torch"
        1024

    """
    engine = config.engine
    if engine.is_torch:
        return engine.torch
    cls = options_class(engine.name)
    if cls is None and engine.options:
        raise ConfigError("engine.options", dict(engine.options), f"{engine.label} takes none")
    if cls is None:
        return None
    return OptionBuilder(Layered()).build(cls, dict(engine.options), "engine.options")


def open_policy(config: Config) -> PolicyRuntime:
    """Return the runtime of the kind of policy that a config trains.

    Example:
        >>> open_policy(config).prepare(print)

    """
    kind = type(config.policy)
    target = getattr(kind, "runtime", None)
    if not isinstance(target, str) or split_name(target) is None:
        fix = f'{kind.__name__} needs a class attribute runtime = "module:Class" (PolicyRuntime)'
        raise ConfigError("policy.type", name_of("policy", kind), fix)
    return find("policy", target, field="policy.type")(config)


def find_player(task: str, target: str) -> Player:
    """Return the player of a kind of task."""
    field = f"tasks.{task}.player"
    found = find("player", target, field=field)
    if not isinstance(found, type):
        raise ConfigError(field, target, "a player is a class with a method play(attempt)")
    play = getattr(found, "play", None)
    if not inspect.iscoroutinefunction(play):
        fix = f"give {found.__name__} a method: async def play(self, attempt) -> Played"
        raise ConfigError(field, target, fix)
    try:
        return found()
    except Exception as error:
        fix = f"making it without arguments raised {describe_error(error)}"
        raise ConfigError(field, target, fix) from error


def find_parser(target: str, *, field: str) -> Callable[[str], Any]:
    """Return the function called `module:function` or `file.py:function`."""
    found = load_object(target, field=field, what="function")
    function_name = target.rpartition(":")[2]
    if problem := refuse_call(found, function_name, ("text",)):
        raise ConfigError(field, target, problem)
    if inspect.iscoroutinefunction(found):
        fix = f"a parser is not awaited: write def {function_name}(text), without async"
        raise ConfigError(field, target, fix)
    return found


def check_places(config: Config) -> None:
    """Raise a ConfigError if no machine could give the workers their places.

    With an address the pools are a cluster's: all of them free, they must have room for every rank
    and engine. Without one they are this machine's.
    """
    if not config.ray.address:
        local_engines(config)
        return
    engines = engine_places(config)
    pools = capacities(config)
    bindings = Bindings(pools)
    # Of nodes of any size: what does not fit on one that has the whole pool fits on none.
    bindings.observe({pool.name: {pool.name: pool.units} for pool in pools}, now=0.0)
    place = trainer_place(config)
    try:
        for rank in range(config.training.ranks):
            bindings.bind(f"rank-{rank}", preferred=place.preferred, needs=place.needs, now=0.0)
    except PlacementError as error:
        raise _no_room_to_train(config, bindings) from error
    try:
        for name, place in engines.items():
            bindings.bind(name, preferred=place.preferred, needs=place.needs, now=0.0)
    except PlacementError as error:
        fix = f"so many leave too little for engines: {error}. Lower it, or give the pools more"
        raise ConfigError("training.ranks", config.training.ranks, fix) from error


def _no_room_to_train(config: Config, bindings: Bindings) -> ConfigError:
    full = [row for row in bindings.table() if row.used]
    if not full:
        fix = 'none of them may train: add one with role = "train", or leave a role out'
        return ConfigError("pools", list(config.pools), fix)
    units = ", ".join(f"pools.{row.name} has {row.units}" for row in full)
    fix = f"each takes a unit of a pool that may train, and {units}: lower it, or raise the count"
    return ConfigError("training.ranks", config.training.ranks, fix)
