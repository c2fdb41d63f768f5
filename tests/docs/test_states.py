"""docs/states.md names the states the code has, and no others."""

import re
from typing import get_args, get_type_hints

import pytest
from checkout import ROOT

from rollart.control import lending
from rollart.control.groups import Attempt, Group
from rollart.control.weight_sync import Syncer

PAGE = (ROOT / "docs" / "states.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def states_in(text: str) -> list[str]:
    return re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)


@pytest.mark.parametrize(("title", "owner"), [("Group", Group), ("Attempt", Attempt)])
def test_each_state_has_a_row_in_the_order_of_the_code(title: str, owner: type):
    assert states_in(section(title)) == list(get_args(get_type_hints(owner)["state"]))


def test_each_state_of_a_lent_engine_has_a_row():
    assert states_in(section("Engine")) == list(get_args(lending.State))


def test_each_collection_of_the_syncer_is_there():
    named = re.findall(r"`Syncer\.(\w+)`", section("Engine"))
    held = vars(Syncer.__new__(Syncer)).keys() | set(Syncer.__init__.__code__.co_names)
    assert set(named) <= held
