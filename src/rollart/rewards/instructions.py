"""Instruction following: how many of a task's verifiable instructions an answer follows.

A task's payload holds a list of objects: `check` names one of `COUNTS` or `CLAIMS`, the other
fields are its arguments. The value is 1 if all are followed, else 0 (`mode = "strict"`), or the
share followed (`mode = "fraction"`). Each part of the reward is one check, named by position and
name.

A count is bounded by `at_least`, `at_most` or `exactly`; a claim is true or false. Checks work for
every language: a word is a run of letters and digits in any script, and a sentence ends with any
kind of full stop.
"""

import json
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Literal, TypeAlias, cast

from rollart.errors import ConfigError, ScoreError
from rollart.rewards.answers import Source, find_answer, get_expected, wrong_payload
from rollart.types import Json, Reward, Trajectory

_WORD = re.compile(r"[^\W_]+(?:['’\-][^\W_]+)*")
_SENTENCE_END = re.compile(r"[.!?…]+(?=[\s\"'”’)\]]|$)|[。\uff01\uff1f]+")
_BULLET = re.compile(r"^[ \t]*(?:[*•-])[ \t]+\S", re.M)
_NUMBERED = re.compile(r"^[ \t]*\d+[.)][ \t]+\S", re.M)
_HIGHLIGHT = re.compile(r"\*\*[^*\n]+\*\*|\*[^*\s][^*\n]*\*")
_FENCED = re.compile(r"\A```[\w]*\s*\n(.*)\n```\Z", re.S)


def words(text: str) -> int:
    """Count words."""
    return len(_WORD.findall(text))


def sentences(text: str) -> int:
    """Count sentences; a last one without a full stop counts too."""
    pieces = [each for each in _SENTENCE_END.split(text) if _WORD.search(each)]
    return len(pieces)


def paragraphs(text: str) -> int:
    """Count paragraphs, separated by empty lines or lines of three or more asterisks."""
    pieces = [
        each for each in re.split(r"\n\s*\n|^\s*\*{3,}\s*$", text, flags=re.M) if each.strip()
    ]
    return len(pieces)


def keywords(text: str, *, all_of: Sequence[str]) -> bool:
    """Require every one of these words, ignoring case."""
    return all(_occurrences(text, word) > 0 for word in _some(all_of))


def forbidden(text: str, *, none_of: Sequence[str]) -> bool:
    """Require that none of these words occurs, ignoring case."""
    return not any(_occurrences(text, word) for word in _some(none_of))


def keyword(text: str, *, word: str) -> int:
    """Count a keyword, ignoring case."""
    return _occurrences(text, word)


def letter(text: str, *, letter: str) -> int:
    """Count a letter, ignoring case."""
    if len(letter) != 1:
        raise ValueError(f"letter = {letter!r} must be one character")
    return text.casefold().count(letter.casefold())


def json_only(text: str) -> bool:
    """Require that the text is only JSON, which may be fenced."""
    stripped = text.strip()
    fenced = _FENCED.match(stripped)
    try:
        json.loads(fenced.group(1) if fenced else stripped)
    except (ValueError, RecursionError):
        return False
    return True


def bullets(text: str) -> int:
    """Count bullet points: lines that begin with *, - or •."""
    return len(_BULLET.findall(text))


def numbered(text: str) -> int:
    """Count items of a numbered list."""
    return len(_NUMBERED.findall(text))


def sections(text: str, *, marker: str = "Section") -> int:
    """Count sections: lines that start with a marker and a number."""
    found = re.findall(rf"^[ \t#*]*{re.escape(marker)}[ \t]+\d+", text, re.M | re.I)
    return len(found)


def highlights(text: str) -> int:
    """Count parts between asterisks."""
    return len(_HIGHLIGHT.findall(text))


def placeholders(text: str) -> int:
    """Count placeholders in square brackets, such as [name]."""
    return len(re.findall(r"\[[^\[\]\n]+\]", text))


def capitals(text: str) -> int:
    """Count words in capital letters only."""
    found = [word for word in _WORD.findall(text) if word.isupper()]
    return len(found)


def lowercase(text: str) -> bool:
    """Require that the text has no capital letter."""
    return text == text.lower()


def uppercase(text: str) -> bool:
    """Require that the text has no small letter."""
    return text == text.upper()


def starts_with(text: str, *, phrase: str) -> bool:
    """Require a phrase at the beginning."""
    return text.lstrip().startswith(phrase)


def ends_with(text: str, *, phrase: str) -> bool:
    """Require a phrase at the end."""
    return text.rstrip().endswith(phrase)


def no_commas(text: str) -> bool:
    """Require that the text has no comma of any script."""
    return not any(comma in text for comma in ",，、،")


def quoted(text: str) -> bool:
    """Require double quotes around the whole text."""
    stripped = text.strip()
    return len(stripped) > 1 and stripped[0] in '"“„' and stripped[-1] in '"”“'


def title(text: str) -> bool:
    """Require a title in double angle brackets, such as <<title>>."""
    return re.search(r"<<[^<>\n]*[^<>\s][^<>\n]*>>", text) is not None


def postscript(text: str, *, marker: str = "P.S.") -> bool:
    """Require a line that starts with a marker, such as P.S."""
    return re.search(rf"^[ \t]*{re.escape(marker)}", text, re.M | re.I) is not None


def one_of(text: str, *, options: Sequence[str]) -> bool:
    """Require exactly one of these options, ignoring outer space and a final full stop."""
    return text.strip().rstrip(".") in {each.rstrip(".") for each in _some(options)}


COUNTS: dict[str, Callable[..., int]] = {
    count.__name__: count
    for count in (
        bullets,
        capitals,
        highlights,
        keyword,
        letter,
        numbered,
        paragraphs,
        placeholders,
        sections,
        sentences,
        words,
    )
}
"""Checks that count something, by name; the instruction gives the bounds."""
CLAIMS: dict[str, Callable[..., bool]] = {
    claim.__name__: claim
    for claim in (
        ends_with,
        forbidden,
        json_only,
        keywords,
        lowercase,
        no_commas,
        one_of,
        postscript,
        quoted,
        starts_with,
        title,
        uppercase,
    )
}
"""Checks that are true or false, by name."""


def keeps(text: str, check: str, arguments: Mapping[str, Json]) -> bool:
    """Return whether a text follows an instruction; bad arguments raise TypeError or ValueError."""
    if check in CLAIMS:
        return CLAIMS[check](text, **arguments)
    bounds = {name: arguments[name] for name in _BOUNDS if name in arguments}
    if not bounds or not all(type(bound) is int for bound in bounds.values()):
        raise ValueError(f"give {', '.join(_BOUNDS)} as whole numbers")
    others = {name: value for name, value in arguments.items() if name not in _BOUNDS}
    count = COUNTS[check](text, **others)
    return all(_BOUNDS[name](count, bound) for name, bound in bounds.items())


_BOUNDS: dict[str, Callable[[Any, Any], bool]] = {
    "at_least": operator.ge,
    "at_most": operator.le,
    "exactly": operator.eq,
}


def _occurrences(text: str, word: str) -> int:
    """Count whole words; a word with non-ASCII letters is also counted inside other words.

    Many scripts write no spaces, so word boundaries cannot be required there.
    """
    if not word.strip():
        raise ValueError("a keyword is empty")
    edge = r"(?<!\w)%s(?!\w)" if word.isascii() else "%s"
    return len(re.findall(edge % re.escape(word.casefold()), text.casefold()))


def _some(texts: object) -> list[str]:
    items = cast("list[object]", texts) if isinstance(texts, list | tuple) else []
    if not items or not all(isinstance(each, str) for each in items):
        raise ValueError(f"{texts!r} must be a list of texts")
    return cast("list[str]", items)


Mode: TypeAlias = Literal["strict", "fraction"]

_CHECKS = sorted(COUNTS | CLAIMS)


def instructions(
    trajectory: Trajectory,
    *,
    key: str = "instructions",
    mode: Mode = "strict",
    source: Source = "last",
    pattern: str | None = None,
    checks: Sequence[Json] | None = None,
) -> Reward:
    """Score an answer by its task's instructions, or by the same `checks` for every task."""
    if mode not in ("strict", "fraction"):
        raise ConfigError("reward.options.mode", mode, "use strict or fraction")
    wanted = get_expected(trajectory, key) if checks is None else list(checks)
    if not isinstance(wanted, list) or not wanted:
        raise wrong_payload(key, wanted, 'a list of {"check": name, …}')
    text = find_answer(trajectory, source=source, pattern=pattern) or ""
    parts = {f"{n}.{_name(each)}": float(_is_kept(text, each)) for n, each in enumerate(wanted)}
    share = sum(parts.values()) / len(parts)
    return Reward(value=share if mode == "fraction" else float(share == 1.0), parts=parts)


def _name(instruction: Json) -> str:
    name = instruction.get("check") if isinstance(instruction, dict) else None
    if not isinstance(name, str) or name not in _CHECKS:
        near = get_close_matches(str(name), _CHECKS, n=1)
        guess = f"did you mean {near[0]}? " if near else ""
        known = ", ".join(_CHECKS)
        message = f"no check is called {name!r} in {instruction!r}; {guess}known: {known}"
        raise ScoreError(message, is_final=True)
    return name


def _is_kept(text: str, instruction: Json) -> bool:
    """Return whether a text follows an instruction; an empty text follows none."""
    name = _name(instruction)
    given = cast("Mapping[str, Json]", instruction)
    arguments = {option: value for option, value in given.items() if option != "check"}
    try:
        is_kept = keeps(text, name, arguments)
    except (TypeError, ValueError) as error:
        message = f"the check {name} cannot be used with {arguments}: {error}"
        raise ScoreError(message, is_final=True) from error
    return is_kept and bool(text.strip())
