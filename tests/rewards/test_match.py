"""Matching answers: equal texts, patterns, and the letter an answer settles on."""

import pytest
from rewarded import attempt

from rollart.errors import ConfigError, ScoreError
from rollart.rewards.match import exact, find_choice, multiple_choice, regex


@pytest.mark.parametrize(
    ("answer", "expected", "reward"),
    [
        ("Paris", "Paris", 1.0),
        ("  Paris\n", "Paris", 1.0),
        ("New   York", "New York", 1.0),
        ("paris", "Paris", 0.0),
        ("Paris.", "Paris", 0.0),
        ("", "Paris", 0.0),
        ("", "", 1.0),
        ("4", 4, 1.0),
        ("4.0", 4, 0.0),
        ("0.5", 0.5, 1.0),
        ("two", ["zwei", "two"], 1.0),
        ("three", ["zwei", "two"], 0.0),
        ("e\u0301te\u0301", "été", 1.0),
        ("漢字", "漢字", 1.0),
        ("x" * 10**6, "Paris", 0.0),
    ],
)
def test_exact_compares_texts_but_for_space(answer: str, expected, reward: float):
    assert exact(attempt(answer, payload={"answer": expected})) == reward


def test_exact_takes_the_last_action_all_of_them_or_what_a_pattern_finds():
    said = attempt("first", "the answer: <b>4</b> or <b>5</b>", payload={"answer": "5", "n": "4"})
    assert exact(said) == 0.0
    assert exact(said, pattern="<b>(.*?)</b>") == 1.0
    assert exact(said, pattern="<b>(.*?)</b>", key="n") == 0.0
    assert exact(said, pattern="<i>(.*?)</i>") == 0.0
    joined = attempt("a", "b", payload={"answer": "a b"})
    assert exact(joined, source="all") == 1.0
    assert exact(joined, source="all", ignore_space=False) == 0.0
    assert exact(attempt("STRASSE", payload={"answer": "straße"}), ignore_case=True) == 1.0
    assert exact(attempt(payload={"answer": "4"})) == 0.0


def test_a_missing_key_is_an_error_that_names_it():
    with pytest.raises(ScoreError, match=r"task.payload has no key 'answer'; its keys: gold, x"):
        exact(attempt("4", payload={"gold": "4", "x": 1}))
    with pytest.raises(ScoreError, match="its keys: none") as caught:
        multiple_choice(attempt("4"))
    assert caught.value.is_final


@pytest.mark.parametrize("expected", [None, True, [], {}, [["a"]]])
def test_an_expectation_of_no_use_is_an_error(expected):
    with pytest.raises(ScoreError, match=r"task.payload\['answer'\] is .*; wanted a text or a num"):
        exact(attempt("4", payload={"answer": expected}))


def test_wrong_options_are_named():
    with pytest.raises(ConfigError, match=r"reward.options.source = 'first': use last or all"):
        exact(attempt("4", payload={"answer": "4"}), source="first")
    with pytest.raises(
        ConfigError, match=r"reward.options.pattern = '\(': is not a valid regular expression"
    ):
        exact(attempt("4", payload={"answer": "4"}), pattern="(")
    with pytest.raises(ConfigError, match=r"reward.options.choices = 'AAB': must be letters, each"):
        multiple_choice(attempt("A", payload={"answer": "A"}), choices="AAB")


@pytest.mark.parametrize(
    ("answer", "options", "reward"),
    [
        ("call 555-1234 now", {"pattern": r"\d{3}-\d{4}"}, 1.0),
        ("call 555-1234 now", {"pattern": r"\d{3}-\d{4}", "whole": True}, 0.0),
        (" 555-1234\n", {"pattern": r"\d{3}-\d{4}", "whole": True}, 1.0),
        ("YES", {"pattern": "yes"}, 0.0),
        ("YES", {"pattern": "yes", "ignore_case": True}, 1.0),
        ("from the task", {}, 1.0),
        ("", {}, 0.0),
        ("a\nb", {"pattern": "a.b"}, 1.0),
        ("ñandú", {"pattern": r"^\w+$"}, 1.0),
    ],
)
def test_regex_finds_a_pattern_of_the_options_or_the_task(answer: str, options, reward: float):
    assert regex(attempt(answer, payload={"pattern": "the t.sk"}), **options) == reward


def test_a_pattern_that_is_no_text_is_an_error():
    with pytest.raises(ScoreError, match=r"task.payload\['pattern'\] is 3; wanted a regular expr"):
        regex(attempt("a", payload={"pattern": 3}))


@pytest.mark.parametrize(
    ("text", "letter"),
    [
        ("B", "B"),
        ("b", "B"),
        (" (b) ", "B"),
        ("**B**", "B"),
        ("B.", "B"),
        ("B) Paris", "B"),
        ("**B.** Paris, because the others are not capitals.", "B"),
        ("(C) is right", "C"),
        (r"so \boxed{B}", "B"),
        (r"so \boxed{\text{B}}", "B"),
        ("<think>A or B?</think><answer>B</answer>", "B"),
        ("The answer is B.", "B"),
        ("the correct answer is option (D)", "D"),
        ("Answer: c", "C"),
        ("**Answer:** C", "C"),
        ("I choose B", "B"),
        ("It is not A; the answer is B", "B"),
        ("A) Rome\nB) Paris\nC) Oslo\n\nThe answer is B", "B"),
        ("A dog would say B", "B"),
        ("Clearly B is right", "B"),
        ("A is right", "A"),
        ("", None),
        ("E", None),
        ("Paris", None),
        ("A or B", None),
        ("The answer is A or B", None),
        ("The answer is a large city", None),
        ("The answer is A. Wait, the answer is C.", None),
        ("A) Rome\nB) Paris", None),
        ("(A) and (B) both fit", None),
        ("The answer is not A", None),
        ("漢字", None),
        ("Bad Cats Do Act", None),
    ],
)
def test_an_answer_settles_on_one_letter_or_on_none(text: str, letter: str | None):
    assert find_choice(text, choices="ABCD") == letter


def test_multiple_choice_compares_letters():
    task = {"answer": "(b)", "gold": "J"}
    assert multiple_choice(attempt("The answer is B", payload=task)) == 1.0
    assert multiple_choice(attempt("The answer is C", payload=task)) == 0.0
    assert multiple_choice(attempt("B or C", payload=task)) == 0.0
    assert multiple_choice(attempt("J", payload=task), key="gold", choices="ABCDEFGHIJ") == 1.0
    assert multiple_choice(attempt("x " * 10**5 + "B", payload=task)) == 1.0
    with pytest.raises(ScoreError, match=r"task.payload\['gold'\] is 'J'; wanted one letter of AB"):
        multiple_choice(attempt("B", payload=task), key="gold")
