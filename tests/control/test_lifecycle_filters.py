import pytest

from rollart.control.rules import Filter
from rollart.errors import ConfigError


def test_every_group_is_kept_by_default():
    assert Filter().keeps([1.0, 1.0], dropped=0)


def test_groups_with_equal_rewards_are_dropped_when_asked():
    rule = Filter(drop_zero_variance=True)
    assert [rule.keeps(rewards, dropped=0) for rewards in ([1.0, 1.0], [0.0, 1.0])] == [False, True]


def test_groups_are_kept_after_the_refill_limit():
    rule = Filter(drop_zero_variance=True, refill_limit=2)
    assert [rule.keeps([1.0, 1.0], dropped=dropped) for dropped in (1, 2, 3)] == [False, True, True]


def test_a_negative_refill_limit_is_refused():
    with pytest.raises(ConfigError, match=r"^filter.refill_limit = -1: must be at least 0$"):
        Filter(refill_limit=-1)
