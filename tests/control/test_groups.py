import pytest

from rollart.control.groups import Attempt, Group

NOW, LATE_S = 4.0, 10.0


def group_of(*, running=(), others=(), scored=0, queued=0):
    """Return a group with attempts running since these times and others in these states."""
    group = Group(id=0)
    in_flight = [("running", at_s) for at_s in running] + [(state, 0.0) for state in others]
    for member, (state, at_s) in enumerate(in_flight):
        group.in_flight[member] = Attempt(
            id=member,
            group=group,
            member=member,
            number=0,
            slot=member,
            launched_s=at_s,
            state=state,
        )
    group.queued = {100 + member: 0 for member in range(queued)}
    group.scored = {200 + member: (200 + member, 1.0) for member in range(scored)}
    return group


@pytest.mark.parametrize(
    ("group", "due_s"),
    [
        (group_of(running=[0.0, 3.0], scored=2), 10.0),
        (group_of(running=[0.0, 3.0], scored=3), 13.0),
        (group_of(running=[0.0, 3.0, 2.0], scored=2), 12.0),
        (group_of(running=[0.0, 3.0], scored=1, queued=1), 10.0),
        (group_of(running=[0.0, 3.0], scored=2, queued=1), 13.0),
        (group_of(running=[0.0, 3.0], scored=2, others=["scoring"]), 13.0),
        (group_of(running=[0.0], scored=1, others=["rival", "finished"]), 10.0),
        (group_of(others=["rival", "rival"], scored=2), 14.0),
        (group_of(running=[0.0, 3.0], scored=1), 10.0),
        (group_of(scored=3, queued=1), 14.0),
        (group_of(running=[0.0, 3.0], scored=7), 13.0),
    ],
    ids=[
        "all are needed",
        "one is needed",
        "one has a rival",
        "one is queued",
        "one is queued in excess",
        "one is being scored",
        "two are to be compared",
        "none runs",
        "a member is lost",
        "the last is queued",
        "it was begun for a larger group",
    ],
)
def test_a_group_is_due_until_too_few_of_its_members_are_on_time(group, due_s):
    assert group.due_s(4, late_s=LATE_S, now=NOW) == due_s
