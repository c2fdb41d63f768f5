"""Values of known types as JSON, and back: the one codec of the project.

A codec is made from a type: a dataclass, or a union, tuple or mapping of them. `encode` writes a
value, `decode` reads one back that is equal to it: floats to the last bit, tuples as tuples. What
is read is checked in full, because it may come from a damaged file or from another machine: every
field is there, none besides, each of its type. What is wrong is one sentence that names the place:

    call.trajectories[0].id must be an integer, got 1.0

The work is done by the compiled core of pydantic. The schema it works by is derived here, because
importing pydantic itself takes four times as long, and every process that runs reward functions
would wait for it. The types follow four rules:

- every field is written, also one that has its default;
- a class of a union is known by its field `kind`, if all of them have one, else by its name, which
  is written as the field `type`;
- an array is its dtype, its shape and its bytes in base64;
- `metadata={"json": "t"}` of a dataclass field gives it another name in JSON.
"""

import base64
import enum
import json
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, fields, is_dataclass
from functools import cached_property
from math import isfinite
from operator import attrgetter
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Any,
    Generic,
    Literal,
    NoReturn,
    TypeVar,
    Union,
    cast,
    get_args,
    get_origin,
)
from typing import get_type_hints as type_hints_of

from pydantic_core import SchemaSerializer, SchemaValidator, ValidationError, core_schema

from rollart.errors import RollartError
from rollart.types import ArrayValue, Json

T = TypeVar("T")
_Schema = core_schema.CoreSchema

_SHOWN = 80
"""Most characters of a value that a message shows."""
_NUMBER_KINDS = "biufc"
"""numpy's dtype kinds that are numbers."""
_SCALARS: dict[Any, Callable[[], Any]] = {
    int: core_schema.int_schema,
    float: core_schema.float_schema,
    str: core_schema.str_schema,
    bool: core_schema.bool_schema,
    NoneType: core_schema.none_schema,
    Any: core_schema.any_schema,
    object: core_schema.any_schema,
}
_WANTED = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "a string",
    "bool_type": "true or false",
    "none_required": "null",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "an object",
    "dataclass_type": "an object",
    "dataclass_exact_type": "an object",
    "model_attributes_type": "an object",
}
"""What pydantic's errors about a type mean, in the words of JSON."""


class CodecError(RollartError):
    """A value that cannot be written, or text or bytes that cannot be read."""


class Codec(Generic[T]):
    """Writes and reads the values of one type as JSON.

    Example:
        stored = Codec[Reward](Reward, name="reward")
        stored.encode(Reward(value=1.0))  # b'{"value":1.0,"parts":{}}'
        stored.decode(b'{"value":1.0}')   # CodecError: reward.parts is missing

    """

    def __init__(self, hint: Any, *, name: str, is_foreign: bool = False) -> None:
        """Take the type and what messages call a value of it.

        What is foreign comes from a program that may not be ours: a number that is not finite and
        a key that is written twice are refused as well, which costs a second look at the text.
        """
        self._hint = hint
        self._name = name
        self._is_foreign = is_foreign
        self.writers: dict[type, Callable[..., bytes]] = {}
        """What writes a value, by the classes that were encoded before.

        For a loop in which calling `encode` takes too long: they know nothing of read-only
        mappings or foreign text, and raise pydantic's errors.
        """

    def encode(self, value: T) -> bytes:
        """Return a value as JSON in UTF-8, on one line."""
        try:
            encoded = self._writer_of(type(value))(value)
        except (ValueError, TypeError, RecursionError) as error:
            encoded = self._encode_slowly(value, error)
        if self._is_foreign and (b"NaN" in encoded or b"Infinity" in encoded):
            check_text(encoded)
        return encoded

    def decode(self, data: bytes | bytearray | str) -> T:
        """Return the value that was encoded."""
        try:
            if self._is_foreign:
                check_text(data)
            return self._validator.validate_json(data)
        except ValidationError as error:
            raise CodecError(_describe(error, data, self._name)) from None

    def _encode_slowly(self, value: T, fault: Exception) -> bytes:
        """Write a value that holds read-only mappings, or text that is no Unicode."""
        try:
            write = self._writer_of(type(value))
            return write(value, fallback=_open_mapping, warnings=False)
        except (ValueError, TypeError, RecursionError) as error:
            if self._is_foreign or "surrogates" not in str(error):
                raise CodecError(f"{self._name} cannot be written as JSON: {fault}") from error
        tree = self._make_serializer(type(value)).to_python(value, warnings=False)
        text = json.dumps(tree, ensure_ascii=False, default=_open_mapping)
        return text.encode("utf-8", "replace")

    def _writer_of(self, cls: type) -> Callable[..., bytes]:
        writer = self.writers.get(cls)
        if writer is None:
            writer = self.writers[cls] = self._make_serializer(cls).to_json
        return writer

    def _make_serializer(self, cls: type) -> SchemaSerializer:
        is_union = _is_union_of_dataclasses(self._hint)
        wanted = get_args(self._hint) if is_union else (self._hint,)
        if cls not in wanted and all(is_dataclass(each) for each in wanted):
            raise CodecError(f"{cls.__name__} is not a type of {self._name}")
        # A union's classes have a serializer each: pydantic's union takes longer to find it.
        hint = cls if is_union else self._hint
        is_named = is_union and _kind_of(cls) is None
        return SchemaSerializer(_derive(hint, _WRITING, is_named=is_named), _WRITING)

    @cached_property
    def _validator(self) -> SchemaValidator:
        config = _FOREIGN if self._is_foreign else _READING
        return SchemaValidator(_derive(self._hint, config), config)


_READING = core_schema.CoreConfig(strict=True)
_FOREIGN = core_schema.CoreConfig(strict=True, allow_inf_nan=False)
_WRITING = core_schema.CoreConfig(ser_json_inf_nan="constants", serialize_by_alias=True)


def _derive(hint: Any, config: core_schema.CoreConfig, *, is_named: bool = False) -> _Schema:
    """Return pydantic's schema of a type; `is_named`: a dataclass carries its name."""
    while hasattr(hint, "__supertype__"):
        hint = hint.__supertype__
    scalar = _SCALARS.get(hint) if isinstance(hint, type) or hint is Any else None
    if scalar is not None:
        return scalar()
    if is_dataclass(hint):
        return _derive_dataclass(cast("type", hint), config, is_named=is_named)
    if hint is ArrayValue:
        return _write_array_schema() if config is _WRITING else _read_array_schema()
    if isinstance(hint, enum.EnumType):
        return core_schema.enum_schema(hint, list(hint))
    if hint in (_JSON, Json):
        return _finite_schema() if config is _FOREIGN else core_schema.any_schema()
    return _derive_generic(hint, config)


def _derive_generic(hint: Any, config: core_schema.CoreConfig) -> _Schema:
    arguments = get_args(hint)
    match get_origin(hint):
        case origin if origin is Literal:
            return core_schema.literal_schema(list(arguments))
        case origin if origin is tuple:
            is_open = arguments[-1] is Ellipsis
            items = [_derive(each, config) for each in arguments if each is not Ellipsis]
            return core_schema.tuple_schema(items, variadic_item_index=0 if is_open else None)
        case origin if origin is list:
            return core_schema.list_schema(_derive(arguments[0], config))
        case origin if origin in (dict, Mapping):
            key, value = (_derive(each, config) for each in arguments)
            return core_schema.dict_schema(key, value)
        case origin if origin in (Union, UnionType):
            return _derive_union(hint, config)
        case _:
            raise TypeError(f"there is no JSON for the type {hint}")


def _derive_union(hint: Any, config: core_schema.CoreConfig) -> _Schema:
    members = [each for each in get_args(hint) if each is not NoneType]
    if len(members) < len(get_args(hint)):
        return core_schema.nullable_schema(_derive(Union[tuple(members)], config))  # noqa: UP007
    if not _is_union_of_dataclasses(hint):
        raise TypeError(f"there is no JSON for the type {hint}")
    if all(_kind_of(each) for each in members):
        kinds = {str(_kind_of(each)): _derive_dataclass(each, config) for each in members}
        return core_schema.tagged_union_schema(kinds, "kind")
    named = {each.__name__: _derive_dataclass(each, config, is_named=True) for each in members}
    by_name = _name_of_class if config is _WRITING else "type"
    return core_schema.tagged_union_schema(named, by_name)


def _derive_dataclass(
    cls: type, config: core_schema.CoreConfig, *, is_named: bool = False
) -> _Schema:
    hints = type_hints_of(cls)
    parts = [_derive_field(each, hints[each.name], config) for each in fields(cls)]
    names = [each.name for each in fields(cls)]
    if is_named and config is _WRITING:
        parts.insert(0, _NAME)
        names.insert(0, "__class__")
    elif is_named:
        tag = core_schema.literal_schema([cls.__name__])
        parts.insert(0, core_schema.dataclass_field("type", tag, kw_only=True, init_only=True))
    arguments = core_schema.dataclass_args_schema(
        cls.__name__, parts, collect_init_only=True, extra_behavior="forbid"
    )
    return core_schema.dataclass_schema(
        cls,
        arguments,
        names,
        post_init=hasattr(cls, "__post_init__"),
        frozen=True,
        slots=hasattr(cls, "__slots__"),
        config=config,
    )


def _derive_field(
    field: Field[Any], hint: Any, config: core_schema.CoreConfig
) -> core_schema.DataclassField:
    name = field.metadata.get("json", field.name)
    return core_schema.dataclass_field(
        field.name,
        _derive(hint, config),
        kw_only=True,
        validation_alias=name,
        serialization_alias=name,
    )


def _kind_of(cls: type) -> str | None:
    hint = type_hints_of(cls).get("kind")
    return get_args(hint)[0] if get_origin(hint) is Literal else None


def _is_union_of_dataclasses(hint: Any) -> bool:
    members = get_args(hint) if get_origin(hint) in (Union, UnionType) else ()
    return bool(members) and all(is_dataclass(each) for each in members)


def _name_of_class(value: object) -> str:
    return type(value).__name__


class _Plain:
    """Holds the alias `Json` where `get_type_hints` resolves it as it does in other classes."""

    value: Json


_JSON: Any = type_hints_of(_Plain)["value"]
"""The alias resolved; outside of a class it is the text it stands for."""
_NAME = core_schema.dataclass_field(
    "__class__",
    core_schema.any_schema(
        serialization=core_schema.plain_serializer_function_ser_schema(
            attrgetter("__name__"), return_schema=core_schema.str_schema()
        )
    ),
    serialization_alias="type",
)
"""Writes the name of an instance's class as its field `type`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ArrayText:
    """An array as JSON."""

    dtype: str
    """As numpy writes it, byte order included."""
    shape: tuple[int, ...]
    data: str
    """Its bytes, row by row, in base64."""


def _finite_schema() -> _Schema:
    return core_schema.no_info_after_validator_function(_check_finite, core_schema.any_schema())


def _write_array_schema() -> _Schema:
    write = core_schema.plain_serializer_function_ser_schema(_write_array)
    return core_schema.any_schema(serialization=write)


def _read_array_schema() -> _Schema:
    text = _derive_dataclass(_ArrayText, _READING)
    return core_schema.no_info_after_validator_function(_read_array, text)


def _write_array(array: ArrayValue) -> dict[str, object]:
    data = base64.b64encode(array.tobytes()).decode()
    return {"dtype": array.dtype.str, "shape": list(array.shape), "data": data}


def _read_array(text: _ArrayText) -> ArrayValue:
    # Here, not above: reward instances read this module and have no use for numpy.
    import numpy as np  # noqa: PLC0415

    try:
        dtype = np.dtype(text.dtype)
    except TypeError:
        raise ValueError(f"{text.dtype!r} is no dtype") from None
    if dtype.kind not in _NUMBER_KINDS:
        raise ValueError(f"an array of dtype {dtype} holds no numbers")
    return np.frombuffer(base64.b64decode(text.data, validate=True), dtype).reshape(text.shape)


def _open_mapping(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(cast("Mapping[object, object]", value))
    raise TypeError(f"{show(value)} is no JSON value")


def check_text(data: bytes | bytearray | str) -> None:
    """Refuse a key that is written twice, and the words for numbers that are not finite."""
    text = data.encode() if isinstance(data, str) else data
    try:
        json.loads(text, object_pairs_hook=_check_keys, parse_constant=_refuse_number)
    except RecursionError:
        raise CodecError("it is nested too deeply") from None
    except ValueError as error:
        raise CodecError(f"no JSON in UTF-8: {error}") from None


def _check_keys(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) != len(pairs):
        keys = show([key for key, _ in pairs])
        raise CodecError(f"a key is written twice among {keys}")


def _check_finite(value: Any) -> Any:
    """Return any JSON, of which pydantic checks no part, if its numbers are finite."""
    match value:
        case float() if not isfinite(value):
            raise ValueError("a number in it is not finite")
        case dict():
            for each in cast("dict[str, Any]", value).values():
                _check_finite(each)
        case list():
            for each in cast("list[Any]", value):
                _check_finite(each)
        case _:
            pass
    return value


def _refuse_number(text: str) -> NoReturn:
    raise CodecError(f"{show(text)} is not a finite number")


def _describe(error: ValidationError, data: bytes | bytearray | str, name: str) -> str:
    """Say what is wrong with a text, and where, in one sentence."""
    first = error.errors(include_url=False)[0]
    kind, given = first["type"], first["input"]
    place = name + "".join(f"[{n}]" if isinstance(n, int) else f".{n}" for n in first["loc"])
    if kind == "json_invalid":
        return _describe_json(data, first["msg"])
    match kind:
        case "missing":
            fault = " is missing"
        case "unexpected_keyword_argument":
            fault = " is unknown"
        case "literal_error" | "enum":
            wanted = str(first.get("ctx", {}).get("expected")).replace("'", "")
            fault = f" must be one of {wanted}, got {show(given)}"
        case "union_tag_invalid" | "union_tag_not_found":
            fault = _describe_tag(first)
        case _ if kind in _WANTED:
            fault = f" must be {_WANTED[kind]}, got {show(given)}"
        case _:
            fault = f": {first['msg']}, got {show(given)}"
    return f"{place}{fault}"


def _describe_tag(error: Any) -> str:
    context, given = error["ctx"], error["input"]
    tag = str(context["discriminator"]).strip("'")
    if not isinstance(given, dict):
        return f" must be an object, got {show(given)}"
    if error["type"] == "union_tag_not_found":
        return f".{tag} is missing"
    return f".{tag} = {context['tag']!r} is not known"


def _describe_json(data: bytes | bytearray | str, message: str) -> str:
    if "recursion limit" in message:
        return "it is nested too deeply"
    try:
        json.loads(data)
    except (ValueError, RecursionError) as error:
        return describe_fault(error)
    return message.removeprefix("Invalid JSON: ")


def describe_fault(error: BaseException) -> str:
    """Say in words what is wrong with a file of JSON, by the error that reading it raised."""
    match error:
        case json.JSONDecodeError():
            line = f"line {error.lineno}, " if error.lineno > 1 else ""
            fault = f"no whole JSON: it breaks off or errs at {line}column {error.colno}"
        case UnicodeDecodeError():
            fault = f"no text: byte {error.start} is not UTF-8"
        case RecursionError():
            fault = "it is nested too deeply"
        case KeyError():
            fault = f"{error.args[0]!r} is missing"
        case TypeError() | AttributeError():
            fault = "a value is of another type than is wanted there"
        case OSError():
            fault = error.strerror or str(error)
        case _:
            fault = str(error)
    return fault


def read_object(file: Path) -> dict[str, Any]:
    """Return the JSON object in a file; a CodecError says what is wrong with it, by its name."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CodecError(f"{file.name} is missing") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CodecError(f"{file.name}: {describe_fault(error)}") from error
    if not isinstance(value, dict):
        raise CodecError(f"{file.name} holds no JSON object")
    return cast("dict[str, Any]", value)


def show(value: object) -> str:
    """Return a value as a message shows it: its repr, cut if it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"
