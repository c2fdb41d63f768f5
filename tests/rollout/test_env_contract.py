import math

import numpy
import pytest

from rollart.errors import EnvError
from rollart.rollout import env_contract
from rollart.rollout.env_contract import check_reset, check_step


class Unspeakable:
    """A reward that is none, and cannot even be shown."""

    def __float__(self):
        raise ValueError("no number")

    def __repr__(self):
        raise KeyError("no text")


def test_what_keeps_the_contract_passes_with_plain_types():
    assert check_reset(("hello", {"actions": ["a"]})) == ("hello", {"actions": ["a"]})
    result = check_step(("x", numpy.float32(0.5), numpy.True_, False, {}))
    assert result == ("x", 0.5, True, False, {})
    assert [type(each) for each in result] == [str, float, bool, bool, dict]
    assert check_step(("x", 1, False, True, {})) == ("x", 1.0, False, True, {})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "it returned NoneType None"),
        ("hello", "it returned str 'hello'"),
        (("hello",), r"it returned a tuple of 1: tuple \('hello',\)"),
        ((3, {}), "the observation was int 3"),
        (("hello", None), "the info was NoneType None"),
        (("\udc80", {}), "the observation is no Unicode text: surrogates not allowed at 0"),
        (("hello", {"success": "no"}), r"info\['success'\] must be a bool; it was str 'no'"),
        (("hello", {"actions": "up"}), r"info\['actions'\] must be a list of str; it was str 'up'"),
    ],
)
def test_a_wrong_reset_is_named(value, message):
    with pytest.raises(EnvError, match=message):
        check_reset(value)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (("x", 0.0, False, {}), "it returned a tuple of 4"),
        (["x", 0.0, False, False, {}], "it returned list"),
        ((b"x", 0.0, False, False, {}), "the observation was bytes b'x'"),
        (("x", "1", False, False, {}), "the reward was str '1'"),
        (("x", True, False, False, {}), "the reward was bool True"),
        (("x", None, False, False, {}), "the reward was NoneType None"),
        (("x", numpy.zeros(2), False, False, {}), "the reward was ndarray .*: TypeError: "),
        (("x", 10**400, False, False, {}), "the reward was int 10.*: OverflowError: "),
        (("x", Unspeakable(), False, False, {}), "Unspeakable whose repr raises KeyError: ValueEr"),
        (("x", math.nan, False, False, {}), "finite reward; it was float nan"),
        (("x", -math.inf, False, False, {}), "finite reward; it was float -inf"),
        (("x", 0.0, 1, False, {}), "terminated was int 1"),
        (("x", 0.0, False, None, {}), "truncated was NoneType None"),
        (("x", 0.0, True, False, {"success": numpy.zeros(2)}), "must be a bool; it was ndarray"),
        (("x", 0.0, False, False, []), r"the info was list \[\]"),
    ],
)
def test_a_wrong_step_is_named(value, message):
    with pytest.raises(EnvError, match=message):
        check_step(value)


def test_long_rubbish_is_shortened():
    with pytest.raises(EnvError) as caught:
        check_reset("x" * 10_000)
    assert len(str(caught.value)) < 200


def test_an_observation_beyond_all_measure_is_cut_before_it_is_looked_at(monkeypatch):
    monkeypatch.setattr(env_contract, "_MOST_CHARACTERS", 4)
    assert check_reset(("\u00e9" * 4 + "\ud800", {})) == ("\u00e9" * 4, {})
