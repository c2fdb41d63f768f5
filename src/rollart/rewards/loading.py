"""Finding a reward function by name: a shipped one, `module:function` or `file.py:function`.

A function takes a trajectory, or, if its first parameter is called `trajectories`, all attempts at
a task; what else it takes by keyword are its options. A wrong name or option is one ConfigError
before a run starts. Nothing is loaded but what is named: shipped modules with heavy packages stay
unimported until one of their functions is asked for.
"""

import importlib
import importlib.util
import inspect
import sys
import threading
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any
from zlib import crc32

from rollart.errors import ConfigError
from rollart.types import Json

SHIPPED = {
    "exact": "rollart.rewards.match:exact",
    "regex": "rollart.rewards.match:regex",
    "multiple_choice": "rollart.rewards.match:multiple_choice",
    "math": "rollart.rewards.mathematics:math",
    "unit_tests": "rollart.rewards.code:unit_tests",
    "stdin_stdout": "rollart.rewards.code:stdin_stdout",
    "instructions": "rollart.rewards.instructions:instructions",
    "format": "rollart.rewards.shaping:well_formed",
    "length": "rollart.rewards.shaping:length",
    "repetition": "rollart.rewards.shaping:repetition",
    "judge": "rollart.rewards.judge:judge",
    "pairwise": "rollart.rewards.judge:pairwise",
    "reward_model": "rollart.rewards.reward_model:reward_model",
    "weighted": "rollart.rewards.weighted:weighted",
    "weighted_group": "rollart.rewards.weighted:weighted_group",
}
"""The shipped functions by name."""
GROUP_PARAMETER = "trajectories"
"""What the first parameter of a function is called that scores a whole group."""
_FIELD = "reward.function"


def load_function(name: str) -> Callable[..., Any]:
    """Return the function called `name`; a class or an object that can be called is one too."""
    target = SHIPPED.get(name, name)
    module_name, colon, function_name = target.rpartition(":")
    if not colon or not module_name or not function_name:
        raise ConfigError(_FIELD, name, _unknown(name))
    module = load_module(module_name, field=_FIELD)
    found = getattr(module, function_name, None)
    if not callable(found):
        functions = [n for n, v in vars(module).items() if inspect.isfunction(v) and n[0] != "_"]
        near = f"; it has {', '.join(functions)}" if functions else ""
        raise ConfigError(_FIELD, name, f"{module_name} has no function {function_name}{near}")
    return found


def is_group_function(name: str) -> bool:
    """Say whether the function called `name` scores all attempts at a task together."""
    first = next(iter(inspect.signature(load_function(name)).parameters), "")
    return first == GROUP_PARAMETER


def check_options(name: str, options: Mapping[str, Json]) -> None:
    """Refuse options the function does not take, and the lack of those it needs."""
    parameters = list(inspect.signature(load_function(name)).parameters.values())[1:]
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


def load_module(name: str, *, field: str) -> ModuleType:
    """Import a module, also from the current directory, or a file by its path ending in .py."""
    if not name.endswith(".py"):
        return _load_named(name, field)
    with _loading:
        return _load_file(name, field)


_loading = threading.RLock()
"""Held while a file is run, so that no thread sees half a module."""
_BY_KEYWORD = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _unknown(name: str) -> str:
    near = get_close_matches(name, SHIPPED, n=1)
    guess = f"did you mean {near[0]}? " if near else ""
    own = "your own: module:function or path/to/file.py:function"
    return f"{guess}shipped: {', '.join(SHIPPED)}; {own}"


def _load_named(name: str, field: str) -> ModuleType:
    here = str(Path.cwd())
    if name not in sys.modules:
        if here not in sys.path:
            sys.path.insert(0, here)
        importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            fix = "no such module here or installed; for a file write path/to/file.py:…"
            raise ConfigError(field, name, fix) from None
        raise ConfigError(field, name, _broken(error)) from error
    except Exception as error:
        raise ConfigError(field, name, _broken(error)) from error


def _load_file(name: str, field: str) -> ModuleType:
    """Import a file once."""
    path = Path(name).expanduser().resolve()
    if not path.is_file():
        raise ConfigError(field, name, f"there is no file {path}")
    key = f"rollart_reward_{path.stem}_{crc32(str(path).encode()):x}"
    if key in sys.modules:
        return sys.modules[key]
    spec = importlib.util.spec_from_file_location(key, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[key] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[key]
        raise ConfigError(field, name, _broken(error)) from error
    return module


def _broken(error: Exception) -> str:
    extra = _EXTRAS.get(getattr(error, "name", None) or "")
    hint = f": install rollart[{extra}]" if extra else ""
    return f"importing it failed: {type(error).__name__}: {error}{hint}"


_EXTRAS = {"math_verify": "math", "httpx": "rewards", "transformers": "train", "torch": "train"}
"""Which extra brings a package a shipped function needs."""
