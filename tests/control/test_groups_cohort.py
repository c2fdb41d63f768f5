import pytest

from rollart.control.groups import Group, GroupTable
from rollart.control.rules import SYNC_PLUS, Batching, Filter, Redundancy, Rules
from rollart.control.staleness import Staleness


def cohort_of(**rules):
    """Return a cohort whose steps take one group of two."""
    batching = Batching(groups_per_step=1, group_size=2)
    return GroupTable(Rules(**{"steps": 9, "batching": batching} | rules), bound=Staleness(alpha=1))


def counts(cohort):
    cohort.check()
    admission = cohort.admission
    return admission.rolling, admission.ready, admission.consumed


def test_a_group_is_in_one_place_from_its_opening_to_its_release():
    cohort = cohort_of()
    group = cohort.open()
    seen = [(group.state, counts(cohort))]
    cohort.birth(group, 0)
    assert cohort.complete(group) == []
    seen.append((group.state, counts(cohort)))
    assert cohort.take() == (group,)
    seen.append((group.state, counts(cohort)))
    cohort.trained(1)
    seen.append((group.state, counts(cohort)))
    cohort.release(0)
    assert cohort.groups == {0: group}
    cohort.release(1)
    assert (cohort.groups, counts(cohort)) == ({}, (0, 0, 0))
    assert seen == [
        ("rolling", (1, 0, 0)),
        ("ready", (0, 1, 0)),
        ("training", (0, 0, 1)),
        ("trained", (0, 0, 1)),
    ]


def test_a_group_opens_with_every_member_queued():
    cohort = cohort_of(redundancy=Redundancy(extra_members=1))
    assert cohort.open() == Group(id=0, queued={0: 0, 1: 0, 2: 0}, members=3)
    assert cohort.open().id == 1


def test_only_an_older_birth_ages_a_group():
    cohort = cohort_of()
    group = cohort.open()
    assert [cohort.birth(group, version) for version in (3, 4, 3, 2)] == [True, False, False, True]
    assert (group.born, cohort.older_than(2), cohort.older_than(3)) == (2, [], [group])


def test_rolling_groups_are_surplus_once_an_iteration_has_its_batch():
    cohort = cohort_of(mode=SYNC_PLUS)
    first, second = cohort.open(), cohort.open()
    cohort.birth(second, 0)
    assert cohort.complete(second) == [first]


@pytest.mark.parametrize("state", ["rolling", "ready"])
def test_what_is_restored_can_be_removed(state):
    cohort = cohort_of()
    group = Group(id=4, state=state, born=0)
    cohort.restore(group)
    assert counts(cohort) == ((1, 0, 0) if state == "rolling" else (0, 1, 0))
    cohort.remove(group)
    assert (cohort.groups, counts(cohort)) == ({}, (0, 0, 0))


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
    cohort = cohort_of(filter=Filter(drop_zero_variance=True))
    scored = {member: (member, reward) for member, reward in enumerate(rewards)}
    assert cohort.judge(Group(id=0, queued=queued, scored=scored)) == verdict
    assert cohort.filtered == (verdict == "zero_variance")
