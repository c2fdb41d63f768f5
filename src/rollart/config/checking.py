"""Checking what a config names: environments, parsers and reward functions are looked up before a
run starts.
"""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from rollart.config.rewards import check_rewards
from rollart.config.schema import Config
from rollart.contract import refuse_call
from rollart.envs.loading import refuse_method
from rollart.envs.players import Suggesting
from rollart.envs.watching import try_env
from rollart.errors import ConfigError, describe_error


def check_names(config: Config, *, is_trained: bool = True) -> None:
    """Make each task's environment once and find its parser and rewards.

    If it is to be trained on, see also that it can be demonstrated.
    """
    for name, task in config.tasks.items():
        try:
            env = try_env(task.env, options=task.options, limit_s=task.reset_timeout_s)
        except ConfigError as error:
            key = "env" if error.field == "env.name" else error.field.removeprefix("env.")
            raise ConfigError(f"tasks.{name}.{key}", error.value, error.fix) from error
        is_imitated = is_trained and config.model.needs_suggestions
        if is_imitated and not isinstance(env, Suggesting):
            fix = "the warm start imitates its method suggest() -> str, and it has none"
            ways = "add one, or set model.warm_start=false or model.noise=1 (random moves only)"
            raise ConfigError(f"tasks.{name}.env", task.env, f"{fix}; {ways}")
        if is_imitated and (problem := refuse_method(type(env), "suggest", ())):
            raise ConfigError(f"tasks.{name}.env", task.env, problem)
        if task.parser:
            find_parser(task.parser, field=f"tasks.{name}.parser")
        check_rewards(name, task.rewards)


def find_parser(target: str, *, field: str) -> Callable[[str], Any]:
    """Return the function called `module:function`."""
    module_name, _, function_name = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        fix = f"no module {error.name}; put it next to the config or set run.import_paths"
        raise ConfigError(field, target, fix) from error
    except Exception as error:
        fix = f"importing {module_name} failed: {describe_error(error)}"
        raise ConfigError(field, target, fix) from error
    found = getattr(module, function_name, None)
    if not callable(found):
        raise ConfigError(field, target, f"{module_name} has no function {function_name}")
    if problem := refuse_call(found, function_name, ("text",)):
        raise ConfigError(field, target, problem)
    if inspect.iscoroutinefunction(found):
        fix = f"a parser is not awaited: write def {function_name}(text), without async"
        raise ConfigError(field, target, fix)
    return found
