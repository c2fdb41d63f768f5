import pytest

from rollart.control.groups import Group, GroupTable
from rollart.control.rules import SYNC_PLUS, Batching, Filter, Redundancy, Rules
from rollart.control.staleness import Staleness


def table_of(**rules):
    """Return a table whose steps take one group of two."""
    batching = Batching(groups_per_step=1, group_size=2)
    return GroupTable(Rules(**{"steps": 9, "batching": batching} | rules), bound=Staleness(alpha=1))


def counts(table):
    table.check()
    admission = table.admission
    return admission.rolling, admission.ready, admission.consumed


def test_a_group_is_in_one_place_from_its_opening_to_its_release():
    table = table_of()
    group = table.open()
    seen = [(group.state, counts(table))]
    table.birth(group, 0)
    assert table.complete(group) == []
    seen.append((group.state, counts(table)))
    assert table.take() == (group,)
    seen.append((group.state, counts(table)))
    table.trained(1)
    seen.append((group.state, counts(table)))
    table.release(0)
    assert table.by_id == {0: group}
    table.release(1)
    assert (table.by_id, counts(table)) == ({}, (0, 0, 0))
    assert seen == [
        ("rolling", (1, 0, 0)),
        ("ready", (0, 1, 0)),
        ("training", (0, 0, 1)),
        ("trained", (0, 0, 1)),
    ]


def test_a_group_opens_with_every_member_queued():
    table = table_of(redundancy=Redundancy(extra_members=1))
    assert table.open() == Group(id=0, queued={0: 0, 1: 0, 2: 0}, members=3)
    assert table.open().id == 1


def test_only_an_older_birth_ages_a_group():
    table = table_of()
    group = table.open()
    assert [table.birth(group, version) for version in (3, 4, 3, 2)] == [
        True,
        False,
        False,
        True,
    ]
    assert (group.born, table.older_than(2), table.older_than(3)) == (2, [], [group])


def test_rolling_groups_are_surplus_once_an_iteration_has_its_batch():
    table = table_of(mode=SYNC_PLUS)
    first, second = table.open(), table.open()
    table.birth(second, 0)
    assert table.complete(second) == [first]


@pytest.mark.parametrize("state", ["rolling", "ready"])
def test_what_is_restored_can_be_removed(state):
    table = table_of()
    group = Group(id=4, state=state, born=0)
    table.restore(group)
    assert counts(table) == ((1, 0, 0) if state == "rolling" else (0, 1, 0))
    table.remove(group)
    assert (table.by_id, counts(table)) == ({}, (0, 0, 0))


@pytest.mark.parametrize(
    ("queued", "rewards", "verdict"),
    [
        ({1: 0}, [1.0], "rolling"),
        ({}, [1.0], "too_few_members"),
        ({}, [1.0, 0.0], "ready"),
        ({2: 0}, [1.0, 1.0], "zero_variance"),
    ],
)
def test_a_group_is_judged_by_what_has_come_of_it_and_what_may_still(queued, rewards, verdict):
    table = table_of(filter=Filter(drop_zero_variance=True))
    scored = {member: (member, reward) for member, reward in enumerate(rewards)}
    assert table.judge(Group(id=0, queued=queued, scored=scored)) == verdict
    assert table.filtered == (verdict == "zero_variance")
