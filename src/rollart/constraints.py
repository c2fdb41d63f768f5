"""Constraints: what a field of an option class accepts beyond its type, written in its annotation.

    steps: Annotated[int, AtLeast(1)] = 100

`check_fields` in the class's `__post_init__` refuses every other value with one ConfigError that
names field, value and fix, and `rollart config explain KEY` prints the same sentence. What
concerns two fields at once is written out below the call. None means "not given" and always
passes; the choices of a `Literal` are checked without a constraint of their own.

A field marked `Fixed` is no key of a config: only code, such as a test, gives it another value.

Standard library only: the pure rules in `control/` use it too.
"""

import dataclasses
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal, Protocol, get_args, get_origin, get_type_hints

from rollart.errors import ConfigError


class Constraint(Protocol):
    """One claim about a value, and the sentence that is said if it does not hold.

    Example:
        >>> AtLeast(1).holds(0), AtLeast(1).fix
        (False, 'must be at least 1')

    """

    @property
    def fix(self) -> str:
        """What the value must be."""
        ...

    def holds(self, value: Any) -> bool:
        """Say whether the value may be used."""
        ...


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A number that is not below a bound; `note` says what the bound itself stands for.

    Example:
        >>> AtLeast(0, "0: all of them").fix
        'must be at least 0 (0: all of them)'

    """

    least: float
    note: str = ""

    @property
    def fix(self) -> str:
        """What the value must be."""
        return f"must be at least {self.least}" + (f" ({self.note})" if self.note else "")

    def holds(self, value: Any) -> bool:
        """Say whether the value is not below the bound; NaN never is."""
        return value >= self.least


@dataclass(frozen=True, slots=True)
class ZeroOrAtLeast:
    """0, which switches something off, or a number that is not below a bound.

    Example:
        >>> ZeroOrAtLeast(1).fix
        'must be 0 or at least 1'

    """

    least: float

    @property
    def fix(self) -> str:
        """What the value must be."""
        return f"must be 0 or at least {self.least}"

    def holds(self, value: Any) -> bool:
        """Say whether the value is 0 or not below the bound."""
        return value == 0 or value >= self.least


@dataclass(frozen=True, slots=True)
class MoreThan:
    """A number above a bound.

    Example:
        >>> MoreThan(0).holds(0.0), MoreThan(0).fix
        (False, 'must be more than 0')

    """

    bound: float

    @property
    def fix(self) -> str:
        """What the value must be."""
        return f"must be more than {self.bound}"

    def holds(self, value: Any) -> bool:
        """Say whether the value is above the bound."""
        return value > self.bound


@dataclass(frozen=True, slots=True)
class Between:
    """A number from `low` to `high`; `without` leaves out one of the two ends.

    Example:
        >>> Between(0, 1).fix, Between(0, 1, without="high").fix
        ('must lie between 0 and 1', 'must be from 0 to below 1')

    """

    low: float
    high: float
    without: Literal["low", "high"] | None = None

    @property
    def fix(self) -> str:
        """What the value must be."""
        match self.without:
            case None:
                return f"must lie between {self.low} and {self.high}"
            case "low":
                return f"must be more than {self.low} and at most {self.high}"
            case "high":
                return f"must be from {self.low} to below {self.high}"

    def holds(self, value: Any) -> bool:
        """Say whether the value lies in the interval."""
        if (self.without == "low" and value == self.low) or (
            self.without == "high" and value == self.high
        ):
            return False
        return self.low <= value <= self.high


@dataclass(frozen=True, slots=True)
class MultipleOf:
    """A positive multiple of a number.

    Example:
        >>> MultipleOf(64).holds(100), MultipleOf(64).fix
        (False, 'must be a multiple of 64')

    """

    unit: int

    @property
    def fix(self) -> str:
        """What the value must be."""
        return f"must be a multiple of {self.unit}"

    def holds(self, value: Any) -> bool:
        """Say whether the value is a multiple, and not 0."""
        return value >= self.unit and value % self.unit == 0


@dataclass(frozen=True, slots=True)
class Finite:
    """A number that is neither infinite nor NaN.

    Example:
        >>> Finite().holds(float("inf"))
        False

    """

    fix: str = "must be a finite number"

    def holds(self, value: Any) -> bool:
        """Say whether the value is finite."""
        return math.isfinite(value)


@dataclass(frozen=True, slots=True)
class NonEmpty:
    """Text, a list or a table that has something in it; `fix` says what it names.

    Example:
        >>> NonEmpty("must name a directory").holds("")
        False

    """

    fix: str = "must not be empty"

    def holds(self, value: Any) -> bool:
        """Say whether there is anything."""
        return bool(value)


@dataclass(frozen=True, slots=True)
class Matches:
    """Text that a regular expression matches as a whole; `fix` says it in words.

    Example:
        >>> Matches(r"[a-z]+", "use small letters").holds("A")
        False

    """

    pattern: str
    fix: str

    def holds(self, value: Any) -> bool:
        """Say whether the whole text matches."""
        return re.fullmatch(self.pattern, value) is not None


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of some values; what `Literal` annotations become.

    Example:
        >>> OneOf(("float32", "bfloat16")).fix
        'must be one of float32, bfloat16'

    """

    choices: tuple[object, ...]

    @property
    def fix(self) -> str:
        """What the value must be."""
        return f"must be one of {', '.join(map(str, self.choices))}"

    def holds(self, value: Any) -> bool:
        """Say whether it is one of them."""
        return value in self.choices


@dataclass(frozen=True, slots=True)
class Fixed:
    """Marks a field that no config may set; `why` says why its default suits every run.

    Example:
        >>> jitter: Annotated[float, Between(0, 1), Fixed("retries are spread enough")] = 0.5

    """

    why: str


def check_fields(options: Any, section: str) -> None:
    """Raise a ConfigError for the first field whose value its annotation does not allow.

    Example:
        >>> check_fields(RunOptions(steps=0), "run")
        ConfigError: run.steps = 0: must be at least 1

    """
    for name, constraints in field_constraints(type(options)).items():
        value = getattr(options, name)
        if value is None:
            continue
        for constraint in constraints:
            if not constraint.holds(value):
                raise ConfigError(f"{section}.{name}", value, constraint.fix)


@cache
def field_constraints(cls: type) -> Mapping[str, tuple[Constraint, ...]]:
    """Return the constraints of each field of a dataclass that has any.

    Example:
        >>> field_constraints(RunOptions)["steps"]
        (AtLeast(least=1, note=''),)

    """
    hints = get_type_hints(cls, include_extras=True)
    found = {each.name: _constraints(hints[each.name]) for each in dataclasses.fields(cls)}
    return {name: constraints for name, constraints in found.items() if constraints}


@cache
def fixed_fields(cls: type) -> Mapping[str, Fixed]:
    """Return the fields of a dataclass that no config may set.

    Example:
        >>> list(fixed_fields(Retry))
        ['jitter']

    """
    hints = get_type_hints(cls, include_extras=True)
    return {
        name: extra
        for name, hint in hints.items()
        if get_origin(hint) is Annotated
        for extra in get_args(hint)
        if isinstance(extra, Fixed)
    }


def _constraints(hint: Any) -> tuple[Constraint, ...]:
    if get_origin(hint) is Annotated:
        inner, *extras = get_args(hint)
        return (*_constraints(inner), *(each for each in extras if hasattr(each, "holds")))
    return (OneOf(get_args(hint)),) if get_origin(hint) is Literal else ()
