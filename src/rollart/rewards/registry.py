"""The registry of reward functions: finds one by name and checks its options.

A name is a shipped function's, `module:function` or `file.py:function`. A function takes one
trajectory or, if its first parameter is called `trajectories`, all attempts at a task; its other
keyword parameters are its options. A wrong name or option raises one ConfigError before a run
starts. Only the named module is imported, so heavy packages load only when needed.

A process that serves a network pins the functions it serves; from then on no other function can be
loaded, not even one named inside the options of a served function.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rollart.errors import ConfigError
from rollart.plugins import BUILT_IN, describe_unknown, load_module, resolve, split_name
from rollart.types import Json

_SHORT = {target: name for name, target in BUILT_IN["reward"].items()}
GROUP_PARAMETER = "trajectories"
"""Name of the first parameter of functions that score a whole group."""
_FIELD = "reward.function"
_pinned: list[frozenset[str]] = []
"""The functions this process serves; empty if it serves none."""


def pin(functions: Iterable[str]) -> None:
    """Allow this process to load only these functions from now on."""
    _pinned[:] = [frozenset(functions)]


def is_pinned() -> bool:
    """Return whether this process serves a network, so that options come from outside."""
    return bool(_pinned)


def load_function(name: str) -> Callable[..., Any]:
    """Return the function called `name`, which may be any callable."""
    if _pinned and name not in _pinned[0]:
        fix = f"is not served here; this process serves {', '.join(sorted(_pinned[0]))}"
        raise ConfigError(_FIELD, name, fix)
    target = split_name(resolve("reward", name))
    if target is None:
        raise ConfigError(_FIELD, name, describe_unknown("reward", name))
    module_name, function_name = target
    module = load_module(module_name, field=_FIELD, value=name)
    found = getattr(module, function_name, None)
    if not callable(found):
        functions = [n for n, v in vars(module).items() if inspect.isfunction(v) and n[0] != "_"]
        near = f"; it has {', '.join(functions)}" if functions else ""
        raise ConfigError(_FIELD, name, f"{module_name} has no function {function_name}{near}")
    try:
        inspect.signature(found).bind_partial(object())
    except (TypeError, ValueError) as error:
        raise ConfigError(_FIELD, name, _unfit(function_name, error)) from error
    return found


def shipped_name(name: str) -> str:
    """Return the short name of a shipped function; "" for a user's function."""
    return name if name in BUILT_IN["reward"] else _SHORT.get(name, "")


def is_group_function(name: str) -> bool:
    """Return whether the function called `name` scores all attempts at a task together."""
    first = next(iter(inspect.signature(load_function(name)).parameters), "")
    return first == GROUP_PARAMETER


def check_options(name: str, options: Mapping[str, Json]) -> None:
    """Raise a ConfigError for options the function does not take and for missing ones."""
    signature = inspect.signature(load_function(name))
    parameters = list(signature.parameters.values())[1:]
    is_open = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    known = [p for p in parameters if p.kind in _BY_KEYWORD]
    names = [p.name for p in known]
    for option, value in options.items():
        if option not in names and not is_open:
            fix = f"{name} has no option {option}; it accepts {', '.join(names) or 'none'}"
            raise ConfigError(f"reward.options.{option}", value, fix)
    for parameter in known:
        if parameter.default is inspect.Parameter.empty and parameter.name not in options:
            raise ConfigError(f"reward.options.{parameter.name}", None, f"{name} needs this option")
    try:
        signature.bind(object(), **options)
    except TypeError as error:
        raise ConfigError(_FIELD, name, _unfit(name.rpartition(":")[2], error)) from error


_BY_KEYWORD = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _unfit(function_name: str, error: Exception) -> str:
    wanted = f"def {function_name}(trajectory, *, option=…), or with trajectories for a group"
    return f"cannot be called with a trajectory ({error}): write {wanted}"
