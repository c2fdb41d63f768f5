"""Arithmetic as a small language: numbers, + - * / // % and brackets, nothing else.

Text is parsed to a syntax tree and the tree is walked; nothing is ever evaluated as code. Length,
depth and size of results are bounded, so no expression can take more than microseconds.
"""

import ast
import math
import operator
from collections.abc import Callable
from fractions import Fraction

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
    """An expression that has no value; the message is fit to be shown to an agent."""


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
    """Return the number as it was written."""
    if not math.isfinite(number):
        raise ArithmeticsError("too large")
    return Fraction(str(number))


def _bounded(value: Fraction) -> Fraction:
    if abs(value.numerator) >= _LARGEST or value.denominator >= _LARGEST:
        raise ArithmeticsError("too large")
    return value
