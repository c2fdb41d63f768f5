import pytest

from rollart.control.rules import Retry
from rollart.errors import ConfigError


def test_rests_double_with_each_failure_in_a_row_up_to_the_longest():
    rule = Retry(backoff_s=1.0, backoff_max_s=10.0, jitter=0.0)
    assert [rule.rest_s(n, draw=0.9) for n in (1, 2, 3, 4, 5, 5000)] == [1, 2, 4, 8, 10, 10]


def test_rests_vary_by_the_jitter():
    rule = Retry(backoff_s=1.0, jitter=0.2)
    assert [rule.rest_s(1, draw=draw) for draw in (0.0, 0.5, 1.0)] == [0.8, 1.0, 1.2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_attempts": 0}, "retry.max_attempts = 0: must be at least 1"),
        ({"backoff_s": -1.0}, "retry.backoff_s = -1.0: must be at least 0"),
        (
            {"backoff_s": 2.0, "backoff_max_s": 1.0},
            "retry.backoff_max_s = 1.0: must be at least retry.backoff_s (2.0)",
        ),
        ({"jitter": 1.5}, "retry.jitter = 1.5: must lie between 0 and 1"),
        ({"give_up_after": 0}, "retry.give_up_after = 0: must be at least 1"),
    ],
)
def test_retry_options_out_of_range_are_refused(options, message):
    with pytest.raises(ConfigError) as error:
        Retry(**options)
    assert str(error.value) == message
