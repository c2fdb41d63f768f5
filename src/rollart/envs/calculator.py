"""Calculator: arithmetic problems, with a calculator that the agent may use before it answers.

The agent writes `calc: 12*7` and reads the result, or `answer: 84` and the episode ends; the reward
is 1 for the right answer. The last of `max_turns` turns must be an answer.

A task may name its `split`: problems are divided by their expression and one in five is kept for
"test", so no problem of an evaluation occurs in training, neither in words nor in symbols.

Expressions are parsed to a syntax tree that is walked; nothing is ever evaluated as code. Length,
depth and size of results are bounded, so no expression takes more than microseconds.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from random import Random

from rollart.envs.registry import draw_of_split, split_of
from rollart.errors import ConfigError
from rollart.types import Json

MAX_CHARACTERS = 200
MAX_DIGITS = 40
_LARGEST = 10**MAX_DIGITS

_BINARY: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction | int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


class ArithmeticsError(ValueError):
    """An expression that cannot be computed; the message may be shown to the agent."""


def compute(expression: str) -> Fraction:
    """Return the exact value of an arithmetic expression."""
    if len(expression) > MAX_CHARACTERS:
        raise ArithmeticsError("too long")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ArithmeticsError("not arithmetic") from None
    try:
        return _walk(tree.body)
    except ZeroDivisionError:
        raise ArithmeticsError("division by zero") from None


def show(value: Fraction) -> str:
    """Return a whole number as digits, any other with up to four decimals."""
    if value.denominator == 1:
        return str(value.numerator)
    return f"{float(value):.4f}".rstrip("0").rstrip(".")


def _walk(node: ast.expr) -> Fraction:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _bounded(_exact(number))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_walk(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _walk(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _bounded(Fraction(_BINARY[type(op)](_walk(left), _walk(right))))
        case _:
            raise ArithmeticsError("not arithmetic")


def _exact(number: float) -> Fraction:
    """Return the exact value of a number as it was written, not of its binary rounding."""
    if not math.isfinite(number):
        raise ArithmeticsError("too large")
    return Fraction(str(number))


def _bounded(value: Fraction) -> Fraction:
    if abs(value.numerator) >= _LARGEST or value.denominator >= _LARGEST:
        raise ArithmeticsError("too large")
    return value


_WORDS = {"+": "plus", "-": "minus", "*": "times"}
_FEWEST_TURNS, _MOST_TURNS = 2, 4
_MOST_TERMS, _MOST_DIGITS = 5, 6
_REDRAWS = 200
"""More draws than it takes to find a problem of a split."""
_PLAIN = re.compile(r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40}|[0-9]{1,40}/[0-9]{1,40})")
_HINT = "write calc: or answer:"


class Calculator:
    """A problem in words or symbols; the reward is 1 for the right answer."""

    system_prompt = "Write calc: 2+3 to compute, then answer: 5"
    inline = True

    def __init__(
        self, *, terms: int = 2, digits: int = 2, words: bool = True, max_turns: int = 4
    ) -> None:
        _check("terms", terms, 2, _MOST_TERMS)
        _check("digits", digits, 1, _MOST_DIGITS)
        _check("max_turns", max_turns, _FEWEST_TURNS, _MOST_TURNS)
        if not isinstance(words, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigError("env.options.words", words, "must be true or false")
        self._terms = terms
        self._digits = digits
        self._words = words
        self._max_turns = max_turns
        self._turns = 0
        self._expression = "0"
        self._result: str | None = None
        """The calculator's result for the whole problem, if the agent computed it."""

    def reset(self, seed: int, task: Mapping[str, Json]) -> tuple[str, dict[str, Json]]:
        """Pose the task's `expression`, or the problem that the seed draws from its `split`."""
        random = Random(seed)
        given = task.get("expression")
        self._expression = self._draw(random, task.get("split")) if given is None else str(given)
        try:
            compute(self._expression)
        except ArithmeticsError as problem:
            raise ConfigError("task.expression", given, f"{problem}") from None
        self._turns = 0
        self._result = None
        in_words = self._words and given is None and random.random() < 0.5
        posed: dict[str, Json] = {"problem": self._expression, "split": split_of(self._expression)}
        return self._pose(in_words=in_words), self._info(success=False) | posed

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Json]]:
        """Compute, or judge an answer; anything else returns a hint and uses up the turn."""
        self._turns += 1
        verb, _, text = action.strip().partition(":")
        match verb.strip().lower():
            case "answer":
                return self._judge(text)
            case "calc":
                observation = self._compute(text)
            case _:
                observation = _HINT
        truncated = self._turns >= self._max_turns
        return observation, 0.0, False, truncated, self._info(success=False)

    def suggest(self) -> str:
        """Return a call of the calculator, then its result as the answer."""
        if self._result is None and self._turns < self._max_turns - 1:
            return f"calc: {self._expression}"
        return f"answer: {self._result or show(compute(self._expression))}"

    def _draw(self, random: Random, split: Json) -> str:
        return draw_of_split(lambda: self._draw_any(random), str, split=split, redraws=_REDRAWS)

    def _draw_any(self, random: Random) -> str:
        numbers = [random.randrange(1, 10**self._digits) for _ in range(self._terms)]
        signs = [random.choice("+-*") for _ in numbers[1:]]
        pairs = zip(signs, numbers[1:], strict=True)
        return str(numbers[0]) + "".join(f"{sign}{number}" for sign, number in pairs)

    def _pose(self, *, in_words: bool) -> str:
        if not in_words:
            return f"{self._expression} = ?"
        text = self._expression
        for sign, word in _WORDS.items():
            text = text.replace(sign, f" {word} ")
        return f"What is {text}?"

    def _compute(self, text: str) -> str:
        try:
            value = compute(text)
        except ArithmeticsError as problem:
            return f"error: {problem}"
        if value == compute(self._expression):
            self._result = show(value)
        return show(value)

    def _judge(self, text: str) -> tuple[str, float, bool, bool, dict[str, Json]]:
        wanted = show(compute(self._expression))
        success = _number(text) == wanted
        observation = "right" if success else f"wrong: {wanted}"
        return observation, float(success), True, False, self._info(success=success)

    def _info(self, *, success: bool) -> dict[str, Json]:
        guess = show(compute(self._expression) + 1)
        actions: list[Json] = [f"calc: {self._expression}", f"answer: {guess}"]
        if self._result is not None:
            actions.append(f"answer: {self._result}")
        return {"actions": actions, "success": success}


def _number(text: str) -> str | None:
    """Return a plain number in its canonical spelling; None if the text is not one.

    Exponents are refused unparsed: 1e999999999 would take all of the program's time and memory.
    """
    if _PLAIN.fullmatch(text.strip()) is None:
        return None
    try:
        return show(Fraction(text.strip()))
    except ZeroDivisionError:
        return None


def _check(name: str, value: Json, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        fix = f"must be a whole number from {least} to {most}"
        raise ConfigError(f"env.options.{name}", value, fix)
