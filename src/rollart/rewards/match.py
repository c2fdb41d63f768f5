"""Match rewards: whether the answer equals a text, matches a pattern or names the right choice.

All three return 1 or 0. Their common options are `source` (the "last" action or "all"), `pattern`
(which part of the answer counts) and `key` (where the task's payload holds the right answer).
"""

import re

from rollart.errors import ConfigError
from rollart.rewards.answers import (
    Source,
    compile_pattern,
    find_answer,
    get_expected,
    get_texts,
    normalise,
    wrong_payload,
)
from rollart.types import Trajectory


def exact(
    trajectory: Trajectory,
    *,
    key: str = "answer",
    source: Source = "last",
    pattern: str | None = None,
    ignore_case: bool = False,
    ignore_space: bool = True,
) -> float:
    """Return 1 if the answer equals the expected text or one of several."""
    expected = get_texts(trajectory, key)
    answer = find_answer(trajectory, source=source, pattern=pattern)
    if answer is None:
        return 0.0

    def plain(text: str) -> str:
        return normalise(text, ignore_case=ignore_case, ignore_space=ignore_space)

    return float(plain(answer) in map(plain, expected))


def regex(
    trajectory: Trajectory,
    *,
    pattern: str | None = None,
    key: str = "pattern",
    source: Source = "last",
    whole: bool = False,
    ignore_case: bool = False,
) -> float:
    """Return 1 if a pattern, given or the task's, matches in the answer or all of it (`whole`)."""
    wanted = get_expected(trajectory, key) if pattern is None else pattern
    if not isinstance(wanted, str):
        raise wrong_payload(key, wanted, "a regular expression")
    compiled = compile_pattern(wanted, re.I if ignore_case else 0)
    answer = find_answer(trajectory, source=source) or ""
    return float(
        (compiled.fullmatch(answer.strip()) if whole else compiled.search(answer)) is not None
    )


def multiple_choice(
    trajectory: Trajectory,
    *,
    key: str = "answer",
    choices: str = "ABCD",
    source: Source = "last",
    pattern: str | None = None,
) -> float:
    """Return 1 if the answer names the right letter; an answer that names none is wrong."""
    if not choices.isalpha() or not choices.isascii() or len(set(choices.upper())) != len(choices):
        raise ConfigError("reward.options.choices", choices, "must be letters, each once")
    expected = get_expected(trajectory, key)
    letter = expected.strip(" ().").upper() if isinstance(expected, str) else ""
    if len(letter) != 1 or letter not in choices.upper():
        raise wrong_payload(key, expected, f"one letter of {choices.upper()}")
    answer = find_answer(trajectory, source=source, pattern=pattern)
    return float(answer is not None and find_choice(answer, choices=choices.upper()) == letter)


def find_choice(text: str, *, choices: str) -> str | None:
    """Return the letter a text chooses, or None if it chooses none or several.

    The clearest form that occurs decides, in this order: the text is only a choice; a letter in a
    box or in tags; after "answer is" and similar; at the start of a line; in brackets; a capital
    that stands alone. Different letters in the same form choose nothing.
    """
    letter = rf"(?i)(?<![a-z])[{choices}](?![a-z])"
    for way in _ways(choices):
        said = [found.group("said") for found in way.finditer(text)]
        letters = {each.upper() for one in said for each in re.findall(letter, one)}
        if letters:
            return letters.pop() if len(letters) == 1 else None
    return None


def _ways(choices: str) -> tuple[re.Pattern[str], ...]:
    """Return patterns of naming a choice, clearest first; group `said` holds the letters."""
    capital = rf"[{choices}](?!\w)"
    small = rf"[{choices.lower()}](?=[)\]}}*_`\"']*\s*(?:$|[.,;:!?)]|\bor\b|\band\b))"
    one = rf"[(\[{{*_`\"'\s]*(?:{capital}|{small})[)\]}}*_`\"']*"
    others = rf"(?:\s*(?:,|/|&|\bor\b|\band\b)\s*{one})*"
    several = rf"(?P<said>{one}{others})"
    cue = r"(?i:\b(?:answer|choice|option|pick|choose|select)s?\b)"
    link = r"(?i:\s+(?:is|was|would be|must be|should be))?\s*(?i:option|choice)?\s*[:=]?"
    # A capital A or I before a small word is usually an English word, not a choice.
    alone = rf"(?![AI]\s+(?!is\b|was\b|because\b|since\b)[a-z])[{choices}]"
    return (
        compile_pattern(rf"^\s*{several}[.!]?\s*$"),
        compile_pattern(rf"(?:\\boxed\{{(?:\\text\w*\{{)?|<answer>)\s*{several}"),
        compile_pattern(rf"{cue}{link}{several}"),
        compile_pattern(rf"^[ \t]*(?P<said>[(\[*]*[{choices}][*]*[)\].:]{others})(?=[\s*])", re.M),
        compile_pattern(rf"(?<!not )(?P<said>\([{choices}]\))"),
        compile_pattern(rf"(?<![\w'-])(?<!not )(?P<said>{alone})(?![\w'-])"),
    )
