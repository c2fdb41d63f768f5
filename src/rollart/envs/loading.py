"""Finding an environment by name: a shipped one, or `module:Class` or `file.py:Class` of a user.

What is returned has been checked to look like an Env, so a wrong name or shape is one message
before a run starts rather than a failure in each episode.
"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import cast
from zlib import crc32

from rollart.errors import ConfigError
from rollart.ports import Env
from rollart.types import Json

SHIPPED = {
    "frozen_lake": "rollart.envs.frozen_lake:FrozenLake",
    "calculator": "rollart.envs.calculator:Calculator",
    "number_guess": "rollart.envs.number_guess:NumberGuess",
}
_FIELD = "env.name"


def load_env_class(name: str) -> Callable[..., Env]:
    """Return the class called `name`."""
    target = SHIPPED.get(name, name)
    module_name, colon, class_name = target.rpartition(":")
    if not colon or not module_name or not class_name:
        raise ConfigError(_FIELD, name, _unknown(name))
    module = _load_file(name) if module_name.endswith(".py") else _load_module(name, module_name)
    found = getattr(module, class_name, None)
    if not inspect.isclass(found):
        classes = [n for n, v in vars(module).items() if _has_shape(v)]
        near = f"; it has {', '.join(classes)}" if classes else ""
        raise ConfigError(_FIELD, name, f"{module_name} has no class {class_name}{near}")
    missing = [m for m in ("reset", "step") if not callable(getattr(found, m, None))]
    if missing:
        fix = f"{class_name} has no method {' and no method '.join(missing)}; an environment has"
        raise ConfigError(_FIELD, name, f"{fix} reset(seed, task) and step(action)")
    return cast("Callable[..., Env]", found)


def make_env(name: str, *, options: Mapping[str, Json], slot: int = 0) -> Env:
    """Return a new environment, its options checked against what its class accepts.

    A class that takes a keyword `slot` is told the one it is made for.
    """
    env_class = load_env_class(name)
    parameters = inspect.signature(env_class).parameters
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
    except Exception as error:
        fix = f"making {name} with them failed: {type(error).__name__}: {error}"
        raise ConfigError("env.options", dict(options), fix) from error


def close_env(env: Env) -> None:
    """Close an environment that was made only to see that it can be; an async close is left out."""
    close = getattr(env, "close", None)
    if close is not None and not inspect.iscoroutinefunction(close):
        close()


def _is_variadic(parameter: inspect.Parameter) -> bool:
    return parameter.kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def _unknown(name: str) -> str:
    near = get_close_matches(name, SHIPPED, n=1)
    guess = f"did you mean {near[0]}? " if near else ""
    return f"{guess}shipped: {', '.join(SHIPPED)}; your own: module:Class or path/to/file.py:Class"


def _has_shape(value: object) -> bool:
    return inspect.isclass(value) and hasattr(value, "reset") and hasattr(value, "step")


def _load_module(name: str, module_name: str) -> ModuleType:
    """Import a module, also from the current directory."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module_name}.".startswith(f"{error.name}."):
            fix = f"no module {module_name} here or installed; for a file write path/to/file.py:…"
            raise ConfigError(_FIELD, name, fix) from None
        raise ConfigError(_FIELD, name, f"importing {module_name} failed: {error}") from error
    except Exception as error:
        raise ConfigError(_FIELD, name, _broken(module_name, error)) from error


def _load_file(name: str) -> ModuleType:
    """Import a file by its path; the same file is imported once."""
    path = Path(name.rpartition(":")[0]).expanduser().resolve()
    if not path.is_file():
        raise ConfigError(_FIELD, name, f"there is no file {path}")
    key = f"rollart_env_{path.stem}_{crc32(str(path).encode()):x}"
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
        raise ConfigError(_FIELD, name, _broken(str(path), error)) from error
    return module


def _broken(module: str, error: Exception) -> str:
    return f"importing {module} failed: {type(error).__name__}: {error}"
