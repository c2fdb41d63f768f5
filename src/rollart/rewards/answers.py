"""The answer of an attempt and what its task expects, read the same way by every function.

The answer is the last turn's action, or all actions joined by line breaks. A pattern narrows it to
its last match, or to that match's first group if it has one. A missing answer is None and scores as
wrong. A missing expected value is an error, because no answer could be right.
"""

import re
import unicodedata
from functools import lru_cache
from typing import Literal, TypeAlias

from rollart.errors import ConfigError, ScoreError
from rollart.types import Json, Trajectory

Source: TypeAlias = Literal["last", "all"]
"""Which actions are the answer."""

_SHOWN = 80
_FENCE = re.compile(r"^[ \t]*```[ \t]*([\w+#.-]*)[^\n]*\n(.*?)^[ \t]*```", re.M | re.S)


def find_answer(
    trajectory: Trajectory, *, source: Source = "last", pattern: str | None = None
) -> str | None:
    """Return the answer of an attempt, or None if the pattern does not match."""
    if source not in ("last", "all"):
        raise ConfigError("reward.options.source", source, "use last or all")
    actions = [turn.action for turn in trajectory.turns]
    text = "\n".join(actions) if source == "all" else (actions or [""])[-1]
    if pattern is None:
        return text
    matches = list(compile_pattern(pattern).finditer(text))
    if not matches:
        return None
    return matches[-1].group(1 if matches[-1].re.groups else 0)


def get_expected(trajectory: Trajectory, key: str) -> Json:
    """Return what the task's payload holds under a key."""
    payload = trajectory.task.payload
    if key not in payload:
        known = ", ".join(payload) or "none"
        raise ScoreError(f"task.payload has no key {key!r}; its keys: {known}", is_final=True)
    return payload[key]


def get_texts(trajectory: Trajectory, key: str) -> tuple[str, ...]:
    """Return the accepted answers as texts: one or several."""
    value = get_expected(trajectory, key)
    several = value if isinstance(value, list) else [value]
    if not several or not all(_is_scalar(each) for each in several):
        raise wrong_payload(key, value, "a text or a number, or a list of them")
    return tuple(str(each) for each in several)


def wrong_payload(key: str, value: Json, wanted: str) -> ScoreError:
    """Return the error for a task whose payload has an unusable value."""
    shown = repr(value)
    shown = shown if len(shown) <= _SHOWN else shown[: _SHOWN - 1] + "…"
    return ScoreError(f"task.payload[{key!r}] is {shown}; wanted {wanted}", is_final=True)


@lru_cache(maxsize=256)
def compile_pattern(pattern: str, flags: int = 0) -> re.Pattern[str]:
    """Return a compiled regular expression whose dot also matches line breaks."""
    try:
        return re.compile(pattern, re.S | flags)
    except re.error as error:
        fix = f"is not a valid regular expression: {error}"
        raise ConfigError("reward.options.pattern", pattern, fix) from error


def normalise(text: str, *, ignore_case: bool, ignore_space: bool) -> str:
    """Return a text in a form in which equal texts compare equal."""
    text = unicodedata.normalize("NFC", text)
    if ignore_case:
        text = unicodedata.normalize("NFC", text.casefold())
    return " ".join(text.split()) if ignore_space else text


def find_code(text: str, *, language: str) -> str:
    """Return the last fenced block of a language, else the last untagged one, else the text."""
    blocks = [(tag.lower(), code) for tag, code in _FENCE.findall(text)]
    wanted = {language.lower(), *_ALIASES.get(language.lower(), ())}
    for tags in (wanted, {""}):
        of_tags = [code for tag, code in blocks if tag in tags]
        if of_tags:
            return of_tags[-1]
    return "" if blocks else text


_ALIASES = {"python": ("py", "python3"), "javascript": ("js",), "cpp": ("c++",), "bash": ("sh",)}


def _is_scalar(value: Json) -> bool:
    return isinstance(value, str | int | float) and not isinstance(value, bool)
