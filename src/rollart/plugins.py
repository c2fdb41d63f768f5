"""Importing what a user names: a module, also of the current directory, or a file by its path.

Whatever goes wrong is one ConfigError that names the field, what was written there and why it could
not be had. A file is run once however often it is named, and no thread ever sees half of one.
"""

import importlib
import importlib.util
import sys
import threading
from pathlib import Path
from types import ModuleType
from zlib import crc32

from rollart.errors import ConfigError, UserError, describe_error

EXTRAS = {"math_verify": "math", "httpx": "rewards", "transformers": "train", "torch": "train"}
"""Which extra brings a package that what is shipped needs."""
_running = threading.RLock()
"""Held while a file is run."""


def split_name(name: str) -> tuple[str, str] | None:
    """Return module (or file) and what is wanted of it; None if `name` is not written that way."""
    module, colon, wanted = name.rpartition(":")
    return (module, wanted) if colon and module and wanted else None


def load_module(name: str, *, field: str, value: object = None) -> ModuleType:
    """Import a module by its name, or a file if that ends in .py.

    `value` is what the field says, if that is more than the name.
    """
    shown = name if value is None else value
    if not name.endswith(".py"):
        return _load_named(name, field, shown)
    with _running:
        return _load_file(name, field, shown)


def _load_named(name: str, field: str, shown: object) -> ModuleType:
    if name not in sys.modules:
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.insert(0, here)
        importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            fix = f"no module {name} here or installed; for a file write path/to/file.py:…"
            raise ConfigError(field, shown, fix) from None
        raise ConfigError(field, shown, _broken(name, error)) from error
    except Exception as error:
        raise ConfigError(field, shown, _broken(name, error)) from error


def _load_file(name: str, field: str, shown: object) -> ModuleType:
    path = Path(name).expanduser().resolve()
    if not path.is_file():
        raise ConfigError(field, shown, f"there is no file {path}")
    key = f"rollart_file_{path.stem}_{crc32(str(path).encode()):x}"
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
        raise ConfigError(field, shown, _broken(str(path), error)) from error
    return module


def _broken(name: str, error: Exception) -> str:
    extra = EXTRAS.get(getattr(error, "name", None) or "")
    hint = f": install rollart[{extra}]" if extra else ""
    return f"importing {name} failed: {describe_error(error)}{hint}"


def load_checkout(name: str) -> ModuleType:
    """Import a module of the source checkout that the package leaves out, as `studies.scale`.

    Example:
        >>> load_checkout("studies.scale").run  # in a checkout

    """
    folder = name.partition(".")[0]
    root = find_checkout(folder)
    if str(root) not in sys.path:
        sys.path.append(str(root))
    return importlib.import_module(name)


def find_checkout(folder: str) -> Path:
    """Return the checkout that has `folder`: around the package, or the current directory."""
    for root in (Path(__file__).parents[2], Path.cwd()):
        if any((root / folder).glob("[a-z]*.py")):
            return root
    raise UserError(
        f"no {folder} here: they come with the source checkout, not with the package; "
        "run this in the checkout's directory"
    )
