import math
import re
from dataclasses import dataclass
from typing import Annotated, Literal

import pytest

from rollart.config.fields import keys_of
from rollart.constraints import (
    AtLeast,
    Between,
    Finite,
    Fixed,
    Matches,
    MoreThan,
    MultipleOf,
    NonEmpty,
    OneOf,
    ZeroOrAtLeast,
    check_fields,
    field_constraints,
    fixed_fields,
)
from rollart.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    steps: Annotated[int, AtLeast(1)] = 1
    share: Annotated[float | None, Between(0, 1)] = None
    name: Annotated[str, NonEmpty("must be a name"), Matches(r"\w*", "use letters")] = "a"
    kind: Literal["one", "two"] = "one"
    free: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self, "things")


@pytest.mark.parametrize(
    ("constraint", "good", "bad", "fix"),
    [
        (AtLeast(1), [1, 2.5], [0, math.nan], "must be at least 1"),
        (AtLeast(0, "0: all"), [0], [-1], "must be at least 0 (0: all)"),
        (ZeroOrAtLeast(1), [0, 1], [0.5, -1], "must be 0 or at least 1"),
        (MoreThan(0), [0.1], [0, math.nan], "must be more than 0"),
        (Between(0, 1), [0, 1], [-0.1, 1.1, math.nan], "must lie between 0 and 1"),
        (Between(0, 1, without="low"), [0.1, 1], [0, 2], "must be more than 0 and at most 1"),
        (Between(0, 1, without="high"), [0, 0.9], [1, -1], "must be from 0 to below 1"),
        (MultipleOf(64), [64, 128], [0, 32, 100], "must be a multiple of 64"),
        (Finite(), [0.0], [math.inf, math.nan], "must be a finite number"),
        (NonEmpty(), ["a", (1,)], ["", ()], "must not be empty"),
        (Matches("[a-z]+", "use small letters"), ["ab"], ["", "a1"], "use small letters"),
        (OneOf(("a", "b")), ["a"], ["c"], "must be one of a, b"),
    ],
)
def test_each_constraint_takes_what_its_sentence_says(constraint, good, bad, fix):
    assert [value for value in good if not constraint.holds(value)] == []
    assert [value for value in bad if constraint.holds(value)] == []
    assert constraint.fix == fix


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"steps": 0}, "things.steps = 0: must be at least 1"),
        ({"share": 2.0}, "things.share = 2.0: must lie between 0 and 1"),
        ({"name": ""}, "things.name = '': must be a name"),
        ({"name": "a/b"}, "things.name = 'a/b': use letters"),
        ({"kind": "three"}, "things.kind = 'three': must be one of one, two"),
    ],
)
def test_the_first_field_that_is_not_allowed_is_named_with_its_value_and_the_fix(values, said):
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}$"):
        Options(**values)


def test_a_value_that_is_not_given_is_not_checked():
    assert Options(share=None).share is None
    assert list(field_constraints(Options)) == ["steps", "share", "name", "kind"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    steps: Annotated[int, AtLeast(1)] = 1
    jitter: Annotated[float, Between(0, 1), Fixed("enough for any run")] = 0.5

    def __post_init__(self) -> None:
        check_fields(self, "tuned")


def test_a_fixed_field_is_given_by_code_alone_and_checked_like_any_other():
    assert fixed_fields(Tuned) == {"jitter": Fixed("enough for any run")}
    assert list(keys_of(Tuned)) == ["steps"]
    assert Tuned(jitter=0.1).jitter == 0.1
    with pytest.raises(ConfigError, match=re.escape("tuned.jitter = 2: must lie between 0 and 1")):
        Tuned(jitter=2)
