"""Finds an environment by name: a shipped one, or a user's `module:Class` or `file.py:Class`.

The class is checked to look like an Env before a run starts, so a wrong name or shape is one
message rather than a failure in each episode.

Also owns the splits of an environment's problems. A problem's split follows from the text that
determines it and from nothing else, so every seed finds it in the same split: one in five is
"test", the others "train".
"""

import inspect
from asyncio import CancelledError
from collections.abc import Callable, Mapping
from marshal import dumps
from pathlib import Path
from typing import TypeVar, cast
from zlib import crc32

from rollart.errors import ConfigError, describe_error
from rollart.plugins import find
from rollart.ports import Env
from rollart.rollout.env_contract import refuse_call
from rollart.types import Json

_FIELD = "env.name"
_CALLS = {"reset": ("seed", "task"), "step": ("action",), "close": ()}
"""The arguments with which an environment's methods are called."""


def load_env_class(name: str) -> Callable[..., Env]:
    """Return the class called `name`."""
    found = find("env", name, field=_FIELD, what="class", is_offered=_has_shape)
    missing = [m for m in ("reset", "step") if not callable(getattr(found, m, None))]
    if missing:
        fix = (
            f"{found.__name__} has no method {' and no method '.join(missing)}; an environment has"
        )
        raise ConfigError(_FIELD, name, f"{fix} reset(seed, task) and step(action)")
    for method, arguments in _CALLS.items():
        if problem := refuse_method(found, method, arguments):
            raise ConfigError(_FIELD, name, problem)
    return cast("Callable[..., Env]", found)


def make_env(name: str, *, options: Mapping[str, Json], slot: int = 0) -> Env:
    """Return a new environment, its options checked against what its class accepts.

    A class with a keyword parameter `slot` receives the slot it is made for.
    """
    env_class = load_env_class(name)
    parameters = _parameters(env_class)
    if "slot" in parameters:
        options = {"slot": slot, **options}
    is_open = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    for option, value in options.items():
        if option not in parameters and not is_open:
            fix = f"{name} has no option {option}; it accepts {', '.join(parameters) or 'none'}"
            raise ConfigError(f"env.options.{option}", value, fix)
    for option, parameter in parameters.items():
        is_needed = parameter.default is inspect.Parameter.empty
        if is_needed and not _is_variadic(parameter) and option not in options:
            raise ConfigError(f"env.options.{option}", None, f"{name} needs this option")
    try:
        return env_class(**options)
    except ConfigError:
        raise
    except (Exception, SystemExit, CancelledError) as error:
        fix = f"making {name} with them failed: {describe_error(error)}"
        raise ConfigError("env.options", dict(options), fix) from error


def _parameters(env_class: Callable[..., Env]) -> Mapping[str, inspect.Parameter]:
    """Return a class's parameters; any keyword, if its signature is unknown."""
    try:
        return inspect.signature(env_class).parameters
    except (TypeError, ValueError):  # a class that is not written in Python
        anything = inspect.Parameter("options", inspect.Parameter.VAR_KEYWORD)
        return {anything.name: anything}


def env_source(name: str) -> str:
    """Return the text of the file an environment's class is written in; empty if there is none.

    A class of a notebook or of standard input has no file: its compiled methods stand for it.
    """
    env_class = load_env_class(name)
    try:
        path = inspect.getsourcefile(env_class)
        return "" if path is None else Path(path).read_text(encoding="utf-8")
    except TypeError:
        return ""
    except OSError:
        methods = [each for each in vars(env_class).values() if inspect.isfunction(each)]
        return "".join(f"{each.__name__} {dumps(each.__code__).hex()}\n" for each in methods)


async def close_env(env: Env) -> None:
    """Close an environment, if it has a `close` method."""
    close = getattr(env, "close", None)
    if close is not None:
        value = close()
        if inspect.isawaitable(value):
            await value


def refuse_method(env_class: type, method: str, arguments: tuple[str, ...]) -> str:
    """Return why a method cannot be called with these arguments; empty if it can, or is unknown."""
    written = inspect.getattr_static(env_class, method, None)
    if not inspect.isfunction(written) and not isinstance(written, staticmethod | classmethod):
        return ""
    is_method = inspect.isfunction(written)
    return refuse_call(getattr(env_class, method), method, arguments, is_method=is_method)


def _is_variadic(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def _has_shape(value: object) -> bool:
    return inspect.isclass(value) and hasattr(value, "reset") and hasattr(value, "step")


T = TypeVar("T")

_TEST_SHARE = 5
"""One problem in this many is kept for evaluations."""


UNDIVIDED = "none"
"""The split of a problem where there are too few to keep some for evaluation."""


def split_of(problem: str) -> str:
    """Return the split of a problem, given as the text that determines it."""
    return "test" if crc32(problem.encode()) % _TEST_SHARE == 0 else "train"


def draw_of_split(
    draw: Callable[[], T], name: Callable[[T], str], *, split: Json, redraws: int
) -> T:
    """Draw a problem of a split, or of any split if it is None.

    `name` returns the text that determines a problem. After `redraws` draws without a match, the
    last problem is returned, so that an environment with few problems does not fail; its reset then
    says so, with `split_of` of what it poses or `UNDIVIDED`.
    """
    problem = draw()
    for _ in range(redraws):
        if split is None or split == split_of(name(problem)):
            break
        problem = draw()
    return problem
