"""Factory: opens the engine that a config names on a model's files.

An engine is added by one class and a name: a built-in one, an entry point of the group
`rollart.engines`, or `module:Class`. Everything that makes engines (this process, a worker of a
cluster) comes through `open_engine`, so a new one needs no other edit.
"""

import dataclasses
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

from rollart.errors import ConfigError
from rollart.plugins import find
from rollart.ports import Engine
from rollart.types import Version

FIELD = "engine.name"


class EngineClass(Protocol):
    """What `engine.name` names: a class whose `open` makes an Engine.

    Its options are the dataclass `Options`, if it has any; a config gives them as
    `[engine.options]`. `serves_weights = False` says that its tokens are not the model's, so that
    the trainer's guard does not compare log-probs.

    Example:
        >>> @dataclass(frozen=True, slots=True, kw_only=True)
        ... class ParrotOptions:
        ...     token: int = 5
        >>> class Parrot:
        ...     Options = ParrotOptions
        ...     @classmethod
        ...     def open(cls, model, *, options, version, threads):
        ...         return cls(options.token, version)

    """

    Options: ClassVar[type[Any]]

    @classmethod
    def open(cls, model: Path, *, options: Any, version: Version, threads: int) -> Engine:
        """Make an engine of a model's directory, whose weights are of this version.

        `threads` is how many CPU threads it should use unless its options say otherwise.
        """
        ...


def find_engine(name: str) -> type[EngineClass]:
    """Return the class of an engine, or say what keeps it from being one.

    Example:
        >>> find_engine("scripted").__name__
        'ScriptedEngine'

    """
    found = find("engine", name, field=FIELD)
    if not callable(getattr(found, "open", None)):
        fix = "it has no classmethod open(model, *, options, version, threads) that makes an engine"
        raise ConfigError(FIELD, name, fix)
    options = getattr(found, "Options", None)
    if options is not None and not (
        isinstance(options, type) and dataclasses.is_dataclass(options)
    ):
        raise ConfigError(FIELD, name, "its Options must be a dataclass")
    return cast("type[EngineClass]", found)


def options_class(name: str) -> type[Any] | None:
    """Return the dataclass of an engine's options; None if it takes none."""
    return getattr(find_engine(name), "Options", None)


def open_engine(name: str, *, options: Any, model: Path, version: Version, threads: int) -> Engine:
    """Open an engine on a model's directory.

    Example:
        >>> open_engine("torch", options=TorchEngineOptions(rows=8), model=Path("models/tiny"),
        ...             version=Version(0), threads=2)

    """
    return find_engine(name).open(model, options=options, version=version, threads=threads)
