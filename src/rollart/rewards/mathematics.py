"""The math reward: whether the answer equals the expected expression, by `math-verify`.

An expected answer that cannot be parsed is an error, because no answer could be right. A model's
answer that cannot be parsed is wrong. An answer that twice takes too long to parse or compare is
wrong too, and the part `stopped` is then 1: what an answer causes is not a failure of scoring. The
time limit uses an alarm signal, which works only in the main thread; in other threads the caller
must set a limit.
"""

import contextlib
import logging
import threading
from itertools import product
from typing import Any

from math_verify import parse, verify
from math_verify.errors import TimeoutException

from rollart.errors import ConfigError, ScoreError
from rollart.rewards.answers import Source, find_answer, get_texts, wrong_payload
from rollart.types import Reward, Trajectory

MOST_CHARACTERS = 4000
"""Only this many characters at the end of an answer are read: results come last."""
REPEATS = 1
"""How often an answer that took too long is tried again."""
_OURS = (MemoryError, ImportError, OSError)
"""Errors of this process rather than of an answer."""

# It warns in every process that there is no time limit outside the main thread; see above.
logging.getLogger("math_verify").setLevel(logging.ERROR)


def math(
    trajectory: Trajectory,
    *,
    key: str = "answer",
    source: Source = "last",
    pattern: str | None = None,
    timeout_s: int = 5,
) -> Reward:
    """Score 1 if the answer equals the expected expression or one of several."""
    if timeout_s < 1:
        raise ConfigError("reward.options.timeout_s", timeout_s, "must be a whole number from 1")
    limit_s = timeout_s if threading.current_thread() is threading.main_thread() else None
    expected = [_read_expected(text, key, limit_s) for text in get_texts(trajectory, key)]
    answer = find_answer(trajectory, source=source, pattern=pattern)
    text = (answer or "")[-MOST_CHARACTERS:]
    for _ in range(1 + REPEATS):
        # Once more, because the time depends on the machine as well.
        with contextlib.suppress(TimeoutException):
            given = _read(text, limit_s)
            is_right = any(_are_equal(each, given, limit_s) for each in expected)
            return Reward(value=float(is_right), parts={"stopped": 0.0})
    return Reward(value=0.0, parts={"stopped": 1.0})


def _read_expected(text: str, key: str, limit_s: int | None) -> list[Any]:
    """Parse an expected answer: all of it as LaTeX, else any expression in it."""
    forms = (text,) if "$" in text or "\\boxed" in text else (f"${text}$", text)
    for form in forms:
        try:
            read = _read(form, limit_s)
        except TimeoutException as error:
            message = f"the expected answer took more than {limit_s} s to read"
            raise ScoreError(message, is_final=True) from error
        # Without any expression math-verify returns only the text itself.
        if any(not isinstance(each, str) for each in read):
            return read
    raise wrong_payload(key, text, "an expression math-verify can read")


def _read(text: str, limit_s: int | None) -> list[Any]:
    """Return the parsed forms of a text; an empty list if it has no expression."""
    try:
        return parse(text, parsing_timeout=limit_s, raise_on_error=True)  # pyright: ignore[reportArgumentType]
    except (TimeoutException, *_OURS):
        raise
    except Exception:
        # The parser fails on odd input with many exceptions; all mean: not readable.
        return []


def _are_equal(expected: list[Any], given: list[Any], limit_s: int | None) -> bool:
    for one, other in product(expected, given):
        try:
            if verify(one, other, timeout_seconds=limit_s, raise_on_error=True):
                return True
        except (TimeoutException, *_OURS):
            raise
        except Exception:  # noqa: S112
            # As above: expressions that cannot be compared are not equal.
            continue
    return False
