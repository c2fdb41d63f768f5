"""Form, length and repetition: values written out, formulas in plain Python."""

import math

import pytest
from rewarded import attempt

from rollart.errors import ConfigError
from rollart.rewards.shaping import length, repetition, well_formed


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("<think>a\nb</think><answer>4</answer>", 1.0),
        (" <think></think>\n\n<answer>漢</answer>\n", 1.0),
        ("<answer>4</answer><think>a</think>", 0.0),
        ("<think>a</think>4", 0.0),
        ("so <think>a</think><answer>4</answer>", 0.0),
        ("<think>a</think><answer>4</answer> done", 0.0),
        ("<think>a</think><think>b</think><answer>4</answer>", 0.0),
        ("<think>a<answer>4</answer></think><answer>4</answer>", 0.0),
        ("<think>a</think><answer>4", 0.0),
        ("", 0.0),
        ("<think>" * 10**5, 0.0),
    ],
)
def test_an_answer_is_well_formed_if_it_is_the_tags_and_nothing_beside(answer: str, reward: float):
    assert well_formed(attempt(answer)) == reward


def test_the_form_is_an_option():
    assert well_formed(attempt("<a>1</a>"), tags=["a"]) == 1.0
    assert well_formed(attempt("move: left"), pattern=r"move: \w+") == 1.0
    assert well_formed(attempt("I move: left"), pattern=r"move: \w+") == 0.0
    with pytest.raises(ConfigError, match=r"reward.options.tags = .*: must be names such as think"):
        well_formed(attempt(""), tags=["<a>"])


def soft_overlong(tokens: int, longest: int, cache: int) -> float:
    """DAPO's formula, case by case."""
    if tokens <= longest - cache:
        return 0.0
    if tokens <= longest:
        return ((longest - cache) - tokens) / cache
    return -1.0


@pytest.mark.parametrize("tokens", [0, 1, 79, 80, 81, 90, 99, 100, 101, 5000])
def test_linear_length_is_the_soft_overlong_punishment(tokens: int):
    got = length(attempt("x", tokens=tokens), limit=100, buffer=20)
    assert got == pytest.approx(soft_overlong(tokens, 100, 20), abs=1e-6)


@pytest.mark.parametrize(
    ("tokens", "penalty"),
    [(80, 0.0), (85, (math.cos(math.pi / 4) - 1) / 2), (90, -0.5), (100, -1.0), (200, -1.0)],
)
def test_cosine_length_goes_the_same_way_gently(tokens: int, penalty: float):
    got = length(attempt("x", tokens=tokens), limit=100, buffer=20, shape="cosine")
    assert got == pytest.approx(penalty, abs=1e-6)


def test_what_is_measured_is_an_option():
    said = attempt("one two", "three", tokens=4)
    assert length(said, limit=8, buffer=8) == -1.0
    assert length(said, limit=8, buffer=8, source="last") == -0.5
    assert length(said, limit=8, buffer=8, source="last", unit="characters") == -0.625
    assert length(said, limit=4, buffer=4, unit="words") == -0.75
    assert length(attempt(), limit=4, buffer=4) == 0.0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"limit": 10, "buffer": 0}, "buffer = 0: must be from 1 to limit = 10"),
        ({"limit": 10, "buffer": 11}, "buffer = 11: must be from 1 to limit = 10"),
        ({"limit": 10, "buffer": 5, "shape": "square"}, "shape = 'square': use linear or cosine"),
        ({"limit": 10, "buffer": 5, "unit": "lines"}, "unit = 'lines': use tokens, characters"),
    ],
)
def test_wrong_lengths_are_named(options, message: str):
    with pytest.raises(ConfigError, match=message):
        length(attempt("x"), **options)


@pytest.mark.parametrize(
    ("answer", "options", "penalty"),
    [
        ("", {}, 0.0),
        ("one two", {}, 0.0),
        ("a b c d", {}, 0.0),
        ("a a a a a", {}, -2 / 3),
        ("the cat the Cat", {"n": 1}, -0.5),
        ("the cat the cat", {"n": 2}, -1 / 3),
        ("the cat the cat", {"n": 2, "most": 0.3}, -0.1),
        ("é é é", {"n": 1}, -2 / 3),
        ("x " * 10**5, {}, -(1 - 1 / (10**5 - 2))),
    ],
)
def test_repetition_is_the_share_of_runs_said_before(answer: str, options, penalty: float):
    assert repetition(attempt(answer), **options) == pytest.approx(penalty, abs=1e-6)


def test_a_run_has_at_least_one_word():
    with pytest.raises(ConfigError, match=r"reward.options.n = 0: must be at least 1"):
        repetition(attempt("a"), n=0)
