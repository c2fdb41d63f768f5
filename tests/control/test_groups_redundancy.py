import pytest

from rollart.control.rules import Redundancy
from rollart.errors import ConfigError


def test_a_group_starts_with_its_extra_members():
    assert Redundancy(extra_members=2).members(8) == 10
    assert Redundancy().members(8) == 8


@pytest.mark.parametrize("name", ["extra_groups", "extra_members"])
def test_less_than_nothing_extra_is_refused(name):
    with pytest.raises(ConfigError) as error:
        Redundancy(**{name: -1})
    assert str(error.value) == f"redundancy.{name} = -1: must be at least 0"
