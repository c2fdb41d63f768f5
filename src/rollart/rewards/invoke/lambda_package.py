"""The AWS Lambda package: one zip with reward functions and the code that runs them.

It holds the `rollart` package and what it needs to read a call (the compiled core of pydantic, for
the Python version and processor of this machine: choose the function's runtime to match), the
top-level package or module of each function, the included extra files, and the list of functions
the handler may run. Entries are sorted and carry a fixed date, so the same content gives the same
bytes.
"""

import importlib.util
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rollart.errors import ConfigError, StorageError, UserError
from rollart.plugins import resolve
from rollart.rewards.invoke.lambda_handler import FUNCTIONS_FILE, handler
from rollart.rewards.registry import load_function

HANDLER = f"{handler.__module__}.{handler.__name__}"
"""The handler name to configure in Lambda."""
_OURS = Path(__file__).parents[2]
_NEEDED = ("pydantic_core", "typing_extensions")
"""Installed packages that `rollart.rewards.payload` imports."""
_EPOCH = (1980, 1, 1, 0, 0, 0)
_UNZIPPED_BYTES = 250 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A written package.

    Example:
        >>> Package(
        ...     path=Path("rewards.zip"), files=212, zipped_bytes=410_000, unzipped_bytes=1_600_000
        ... )

    """

    path: Path
    files: int
    zipped_bytes: int
    unzipped_bytes: int


def write_lambda_package(
    path: Path, functions: Sequence[str], *, include: Sequence[Path] = ()
) -> Package:
    """Write the zip; the files and directories in `include` go to its root."""
    contents: dict[str, bytes] = {
        FUNCTIONS_FILE: json.dumps(sorted(functions)).encode(),
        **_tree(_OURS, "rollart", ("*.py",)),
    }
    for name in _NEEDED:
        contents |= _installed(name)
    for name in functions:
        contents |= _module_of(name)
    for extra in include:
        contents |= _included(extra)
    unzipped = sum(map(len, contents.values()))
    if unzipped > _UNZIPPED_BYTES:
        limit = _UNZIPPED_BYTES // 2**20
        raise UserError(
            f"the package has {unzipped} bytes unzipped; Lambda allows {limit} MiB: include less"
        )
    try:
        with zipfile.ZipFile(path, "w") as archive:
            for name in sorted(contents):
                entry = zipfile.ZipInfo(name, _EPOCH)
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, contents[name], zipfile.ZIP_DEFLATED)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {error.strerror}") from error
    size = path.stat().st_size
    return Package(path=path, files=len(contents), zipped_bytes=size, unzipped_bytes=unzipped)


def _module_of(name: str) -> Mapping[str, bytes]:
    """Return the files of the top-level package or module that contains a function."""
    load_function(name)
    module_name = resolve("reward", name).rpartition(":")[0]
    if module_name.endswith(".py"):
        fix = "Lambda cannot load a path: write module:function and run this next to the module"
        raise ConfigError("function", name, fix)
    top = module_name.partition(".")[0]
    return {} if top == "rollart" else _installed(top)


def _installed(top: str) -> Mapping[str, bytes]:
    """Return the files of a top-level package or module."""
    spec = importlib.util.find_spec(top)
    if spec is None or spec.origin is None:
        return {}
    origin = Path(spec.origin)
    if spec.submodule_search_locations:
        return _tree(origin.parent, top, ("*",))
    return {origin.name: origin.read_bytes()}


def _included(path: Path) -> Mapping[str, bytes]:
    if path.is_dir():
        return _tree(path, "", ("*",))
    if path.is_file():
        return {path.name: path.read_bytes()}
    raise UserError(f"--include {path}: no such file or directory")


def _tree(root: Path, prefix: str, patterns: Iterable[str]) -> dict[str, bytes]:
    return {
        str(Path(prefix) / path.relative_to(root)): path.read_bytes()
        for path in _files(root, patterns)
    }


def _files(root: Path, patterns: Iterable[str]) -> Iterator[Path]:
    for pattern in patterns:
        for path in root.rglob(pattern):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path
