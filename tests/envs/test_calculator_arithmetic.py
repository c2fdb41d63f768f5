from contextlib import suppress
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollart.envs.calculator import ArithmeticsError, compute, show


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12*7", "84"),
        (" 1 + 2 * (3 - 4) ", "-1"),
        ("-7 // 2", "-4"),
        ("7 % 4", "3"),
        ("1/3", "0.3333"),
        ("0.1+0.2", "0.3"),
        ("+5", "5"),
    ],
)
def test_arithmetic_is_exact(text, value):
    assert show(compute(text)) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not arithmetic"),
        ("2**9999999", "not arithmetic"),
        ("__import__('os')", "not arithmetic"),
        ("True + 1", "not arithmetic"),
        ("1 if 2 else 3", "not arithmetic"),
        ("'a' * 9", "not arithmetic"),
        ("1j", "not arithmetic"),
        ("1\x00", "not arithmetic"),
        ("1 < 2", "not arithmetic"),
        ("(" * 150 + "1", "not arithmetic"),
        ("1e99", "too large"),
        ("1e400", "too large"),
        ("9" * 39 + "*" + "9" * 39, "too large"),
        ("1/0", "division by zero"),
        ("1%0", "division by zero"),
        ("1+" * 200 + "1", "too long"),
    ],
)
def test_anything_else_is_refused(text, reason):
    with pytest.raises(ArithmeticsError, match=reason):
        compute(text)


@settings(deadline=None)
@given(st.text(alphabet="0123456789+-*/%(). e", max_size=60))
def test_no_text_does_anything_but_give_a_number_or_be_refused(text):
    with suppress(ArithmeticsError):
        assert isinstance(compute(text), Fraction)
