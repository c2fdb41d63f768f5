"""Fields of option classes, read by reflection: keys, types, constraints, documentation.

An option class is a frozen dataclass. Its fields are a section's keys, in the class's own order;
inherited fields come last, and fields marked `Fixed` are no keys. A key differs from the Python
attribute only where `named` says so. Loader, writer and `config explain` all ask here, so they
agree on what a section holds.
"""

import ast
import dataclasses
import inspect
import json
import types
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from rollart.constraints import Constraint, OneOf, field_constraints, fixed_fields
from rollart.plugins import Kind

_KEY, _CHOSEN = "key", "chosen"
TYPE = "type"
"""The key of a section that says which class the section's other keys are the fields of."""
_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def named(key: str) -> dict[str, Any]:
    """Return the metadata of a field that has another key in files.

    Example:
        >>> hardware: str = field(metadata=named("class"))

    """
    return {_KEY: key}


def chosen(kind: Kind) -> dict[str, Any]:
    """Return the metadata of a field that holds an option class of the user's choice.

    Its section names the class under `type`: what `plugins.find` finds.

    Example:
        >>> algorithm: Algorithm = field(default_factory=Grpo, metadata=chosen("algorithm"))

    """
    return {_CHOSEN: kind}


def chosen_kind(cls: Any, key: str) -> Kind | None:
    """Return what kind of class a key's section chooses; None if it does not."""
    return _entry(cls, key).metadata.get(_CHOSEN)


def make_default(cls: Any, key: str) -> Any:
    """Return a new default of a field that makes its own."""
    factory = _entry(cls, key).default_factory
    assert factory is not dataclasses.MISSING
    return factory()


def _entry(cls: Any, key: str) -> "dataclasses.Field[Any]":
    return next(each for each in option_fields(cls) if each.metadata.get(_KEY, each.name) == key)


def option_fields(cls: Any) -> "list[dataclasses.Field[Any]]":
    """Return a class's fields that are keys: those it defines itself, then those it inherits."""
    owner: type = cls if isinstance(cls, type) else type(cls)
    own = inspect.get_annotations(owner)
    fixed = fixed_fields(owner)
    found = [each for each in dataclasses.fields(cls) if each.name not in fixed]
    return sorted(found, key=lambda each: each.name not in own)


def keys_of(cls: Any) -> Mapping[str, str]:
    """Return the attribute of each key.

    Example:
        >>> keys_of(PoolOptions)["class"]
        'hardware'

    """
    return {
        cast("str", each.metadata.get(_KEY, each.name)): each.name for each in option_fields(cls)
    }


@cache
def field_types(cls: type) -> Mapping[str, Any]:
    """Return the resolved types of an option class's fields, by key."""
    hints = get_type_hints(cls)
    return {key: hints[name] for key, name in keys_of(cls).items()}


def constraints_of(cls: type, key: str) -> tuple[Constraint, ...]:
    """Return what a key's value must satisfy beyond its type."""
    found = field_constraints(cls).get(keys_of(cls)[key], ())
    return tuple(each for each in found if not isinstance(each, OneOf))


def option_class(hint: Any) -> type[Any] | None:
    """Return the option class a field holds, directly or by name.

    Example:
        >>> option_class(Mapping[str, TaskOptions])
        <class 'rollart.config.options.TaskOptions'>

    """
    if get_origin(hint) is Mapping:
        hint = get_args(hint)[-1]
    return hint if isinstance(hint, type) and dataclasses.is_dataclass(hint) else None


def required_keys(cls: type) -> list[str]:
    """Return the keys that have no default."""
    missing = dataclasses.MISSING
    return [
        key
        for key, each in zip(keys_of(cls), option_fields(cls), strict=True)
        if each.default is missing and each.default_factory is missing
    ]


def describe_type(hint: Any) -> str:
    """Say in words what a field accepts.

    Example:
        >>> describe_type(tuple[float, float])
        'a list of 2, each a number'

    """
    arguments = get_args(hint)
    origin = get_origin(hint)
    if origin is Literal:
        return " or ".join(json.dumps(each) for each in arguments)
    if origin in (Union, types.UnionType):
        words = [describe_type(each) for each in arguments if each is not type(None)]
        return " or ".join([*words, '"none"'] if type(None) in arguments else words)
    if origin is tuple:
        count = "" if arguments[-1] is ... else f" of {len(arguments)}"
        return f"a list{count}, each {describe_type(arguments[0])}"
    if origin in (Mapping, dict):
        return "a table"
    if dataclasses.is_dataclass(hint):
        return "a section"
    return _WORDS.get(hint, str(hint))


@cache
def field_docs(cls: type) -> Mapping[str, str]:
    """Return the docstring below each field of an option class, by key."""
    keys = {name: key for key, name in keys_of(cls).items()}
    docs = dict.fromkeys(keys.values(), "")
    for owner in reversed(cls.__mro__):
        if dataclasses.is_dataclass(owner):
            written = _written_docs(owner)
            docs |= {keys[name]: text for name, text in written.items() if name in keys}
    return docs


def _written_docs(cls: type) -> dict[str, str]:
    """Return the docstrings written in one class, by attribute."""
    tree = ast.parse(inspect.getsource(inspect.getmodule(cls) or cls))
    docs: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and node.name == cls.__name__:
            for entry, below in zip(node.body, node.body[1:], strict=False):
                match entry, below:
                    case (
                        ast.AnnAssign(target=ast.Name(id=name)),
                        ast.Expr(value=ast.Constant(value=str(text))),
                    ):
                        docs[name] = inspect.cleandoc(text)
                    case _:
                        pass
    return docs
