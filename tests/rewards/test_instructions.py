"""Instructions: each check by written-out texts, and how they add up."""

import pytest
from rewarded import attempt

from rollart.errors import ConfigError, ScoreError
from rollart.rewards.instructions import CLAIMS, COUNTS, instructions
from rollart.types import Reward


@pytest.mark.parametrize(
    ("check", "arguments", "text", "count"),
    [
        ("words", {}, "It's a well-known fact, 42 times.", 6),
        ("words", {}, "Größe 漢字 ñandú", 3),
        ("words", {}, "", 0),
        ("words", {}, "x " * 10**5, 10**5),
        ("sentences", {}, "One. Two! Three? And four", 4),
        ("sentences", {}, 'Version 2.5 is out. "Good." It is...', 3),
        ("sentences", {}, "これは一。これは二。", 2),
        ("paragraphs", {}, "one\nstill one\n\ntwo\n \nthree", 3),
        ("paragraphs", {}, "one\n***\ntwo", 2),
        ("keyword", {"word": "cat"}, "Cat, cats and a CAT", 2),
        ("keyword", {"word": "c++"}, "c++ or C++?", 2),
        ("keyword", {"word": "猫"}, "黒猫と白猫", 2),
        ("letter", {"letter": "e"}, "Else", 2),
        ("bullets", {}, "* one\n- two\n  • three\n*bold* no\n-no", 3),
        ("numbered", {}, "1. one\n2) two\n3 three", 2),
        ("sections", {}, "Section 1\ntext\n## SECTION 2\nsection of", 2),
        ("sections", {"marker": "Part"}, "Part 1\nPart two", 1),
        ("highlights", {}, "*a* and **b c**, 2 * 3 * 4", 2),
        ("placeholders", {}, "Dear [name], [date] []", 2),
        ("capitals", {}, "NASA is NOT a Word", 2),
    ],
)
def test_what_is_counted(check: str, arguments, text: str, count: int):
    assert COUNTS[check](text, **arguments) == count


@pytest.mark.parametrize(
    ("check", "arguments", "kept", "broken"),
    [
        ("ends_with", {"phrase": "Bye."}, "Well. Bye.\n", "Bye. Or not"),
        ("starts_with", {"phrase": "Dear"}, " Dear Ana", "My dear Ana"),
        ("forbidden", {"none_of": ["war", "peace"]}, "a warm day", "War is over"),
        ("keywords", {"all_of": ["war", "peace"]}, "War and Peace", "Warm and peace"),
        ("json_only", {}, '{"a": [1, null]}', '{"a": 1} there you are'),
        ("json_only", {}, '```json\n{"a": 1}\n```', "```json\n{a: 1}\n```"),
        ("json_only", {}, "3", "[" * 10**5),
        ("lowercase", {}, "all small, 3 é", "One"),
        ("uppercase", {}, "ALL LARGE É 3", "ALL LARGe"),
        ("no_commas", {}, "none here; none", "one, two"),
        ("no_commas", {}, "none", "一、二"),
        ("one_of", {"options": ["yes", "no"]}, " yes.\n", "yes and no"),
        ("postscript", {}, "Hello\n\nP.S. more", "Hello P.S. more"),
        ("quoted", {}, '"all of it"', '"some" of it'),
        ("title", {}, "<<A Poem>>\ntext", "<< >>\n<A Poem>"),
    ],
)
def test_what_is_claimed(check: str, arguments, kept: str, broken: str):
    assert CLAIMS[check](kept, **arguments)
    assert not CLAIMS[check](broken, **arguments)


def test_every_check_has_a_name_of_its_own():
    assert not COUNTS.keys() & CLAIMS.keys()
    assert len(COUNTS | CLAIMS) == 23


ASKED = [
    {"check": "words", "at_least": 2, "at_most": 3},
    {"check": "lowercase"},
    {"check": "words", "exactly": 3},
]


@pytest.mark.parametrize(
    ("answer", "kept"),
    [
        ("a b c", (1.0, 1.0, 1.0)),
        ("a b", (1.0, 1.0, 0.0)),
        ("A", (0.0, 0.0, 0.0)),
        ("A b c", (1.0, 0.0, 1.0)),
        ("", (0.0, 0.0, 0.0)),
    ],
)
def test_strict_wants_all_and_fraction_counts(answer: str, kept: tuple[float, float, float]):
    one = attempt(answer, payload={"instructions": ASKED})
    parts = dict(zip(("0.words", "1.lowercase", "2.words"), kept, strict=True))
    assert instructions(one) == Reward(value=float(all(kept)), parts=parts)
    assert instructions(one, mode="fraction") == Reward(value=sum(kept) / 3, parts=parts)


def test_instructions_may_stand_in_the_options():
    got = instructions(attempt("a, b"), checks=[{"check": "no_commas"}])
    assert got == Reward(value=0.0, parts={"0.no_commas": 0.0})


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ([], r"task.payload\['instructions'\] is \[\]; wanted a list of"),
        ("no_commas", r"task.payload\['instructions'\] is 'no_commas'; wanted a list of"),
        ([3], "no check is called None in 3"),
        ([{"check": "no_comma"}], "'no_comma' in .*did you mean no_commas"),
        (
            [{"check": "words"}],
            "the check words cannot be used with {}: give at_least, at_most, ex",
        ),
        ([{"check": "words", "exactly": "3"}], "as whole numbers"),
        ([{"check": "lowercase", "exactly": 3}], "the check lowercase cannot be used with"),
        ([{"check": "starts_with"}], "missing 1 required keyword-only argument: 'phrase'"),
        ([{"check": "keywords", "all_of": "cat"}], "'cat' must be a list of texts"),
        ([{"check": "keyword", "word": " ", "exactly": 1}], "a keyword is empty"),
        ([{"check": "letter", "letter": "ab", "exactly": 1}], "'ab' must be one character"),
    ],
)
def test_instructions_of_no_use_are_errors(asked, message: str):
    with pytest.raises(ScoreError, match=message) as caught:
        instructions(attempt("a", payload={"instructions": asked}))
    assert caught.value.is_final


def test_a_missing_key_and_a_wrong_mode_are_named():
    with pytest.raises(ScoreError, match=r"task.payload has no key 'instructions'; its keys: x"):
        instructions(attempt("a", payload={"x": 1}))
    with pytest.raises(ConfigError, match=r"reward.options.mode = 'loose': use strict or fraction"):
        instructions(attempt("a"), mode="loose")
