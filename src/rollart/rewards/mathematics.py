"""The math reward: whether the answer equals the expected expression, by `math-verify`.

An expected answer that cannot be parsed is an error, because no answer could be right. A model's
answer that cannot be parsed is wrong. An answer that takes too long to parse or compare is an
error, because time depends on the machine, not on the answer. The time limit uses an alarm signal,
which works only in the main thread; in other threads the caller must set a limit.
"""

import logging
import threading
from itertools import product
from typing import Any

from math_verify import parse, verify
from math_verify.errors import TimeoutException

from rollart.errors import ConfigError, ScoreError
from rollart.rewards.answers import Source, find_answer, get_texts, wrong_payload
from rollart.types import Trajectory

MOST_CHARACTERS = 4000
"""Only this many characters at the end of an answer are read: results come last."""
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
) -> float:
    """Return 1 if the answer equals the expected expression or one of several."""
    if timeout_s < 1:
        raise ConfigError("reward.options.timeout_s", timeout_s, "must be a whole number from 1")
    limit_s = timeout_s if threading.current_thread() is threading.main_thread() else None
    expected = [_read_expected(text, key, limit_s) for text in get_texts(trajectory, key)]
    answer = find_answer(trajectory, source=source, pattern=pattern)
    given = _read((answer or "")[-MOST_CHARACTERS:], limit_s)
    return float(any(_are_equal(each, given, limit_s) for each in expected))


def _read_expected(text: str, key: str, limit_s: int | None) -> list[Any]:
    """Parse an expected answer: all of it as LaTeX, else any expression in it."""
    forms = (text,) if "$" in text or "\\boxed" in text else (f"${text}$", text)
    for form in forms:
        read = _read(form, limit_s)
        # Without any expression math-verify returns only the text itself.
        if any(not isinstance(each, str) for each in read):
            return read
    raise wrong_payload(key, text, "an expression math-verify can read")


def _read(text: str, limit_s: int | None) -> list[Any]:
    """Return the parsed forms of a text; an empty list if it has no expression."""
    try:
        return parse(text, parsing_timeout=limit_s, raise_on_error=True)  # pyright: ignore[reportArgumentType]
    except TimeoutException as error:
        raise _slow("read", limit_s) from error
    except _OURS:
        raise
    except Exception:
        # The parser fails on odd input with many exceptions; all mean: not readable.
        return []


def _are_equal(expected: list[Any], given: list[Any], limit_s: int | None) -> bool:
    for one, other in product(expected, given):
        try:
            if verify(one, other, timeout_seconds=limit_s, raise_on_error=True):
                return True
        except TimeoutException as error:
            raise _slow("compare", limit_s) from error
        except _OURS:
            raise
        except Exception:  # noqa: S112
            # As above: expressions that cannot be compared are not equal.
            continue
    return False


def _slow(what: str, limit_s: int | None) -> ScoreError:
    return ScoreError(f"the answer took more than {limit_s} s to {what}", is_final=True)
