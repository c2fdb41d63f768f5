import json
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from world import World

from rollart.control.rules import Batching, Dispatch, Rules, one_domain
from rollart.control.scheduler import Scheduler
from rollart.control.snapshot import buffered, restore, take_snapshot
from rollart.control.task_order import Dispatcher
from rollart.errors import ConfigError
from rollart.events import Launch

DOMAINS = ("game", "math", "code")
LONGEST = Dispatch(order="longest")


def by_turns(index):
    """Return one domain after the other."""
    return DOMAINS[index % 3]


def dispatcher_of(rule=LONGEST, *, groups_per_step=6, durations=None):
    dispatcher = Dispatcher(rule, groups_per_step=groups_per_step, domain_of=by_turns)
    for domain, took_s in (durations or {}).items():
        dispatcher.durations.note(domain, took_s)
    return dispatcher


def test_tasks_are_opened_as_they_come_by_default():
    dispatcher = dispatcher_of(Dispatch(), durations={"game": 1.0, "math": 9.0})
    assert [dispatcher.next_task() for _ in range(7)] == list(range(7))


def test_the_longest_of_a_batch_are_opened_first():
    dispatcher = dispatcher_of(durations={"game": 1.0, "math": 9.0, "code": 5.0})
    assert [dispatcher.next_task() for _ in range(6)] == [1, 4, 2, 5, 0, 3]
    assert [dispatcher.next_task() for _ in range(6)] == [7, 10, 8, 11, 6, 9]


def test_a_domain_of_which_nothing_is_known_goes_first():
    dispatcher = dispatcher_of(durations={"game": 1.0, "math": 9.0})
    assert [dispatcher.next_task() for _ in range(6)] == [2, 5, 1, 4, 0, 3]


def test_how_far_to_look_ahead_can_be_set():
    rule = Dispatch(order="longest", lookahead_groups=3)
    dispatcher = dispatcher_of(rule, durations={"game": 1.0, "math": 9.0, "code": 5.0})
    assert [dispatcher.next_task() for _ in range(6)] == [1, 2, 0, 4, 5, 3]


def test_a_lookahead_below_nothing_is_refused():
    with pytest.raises(ConfigError) as error:
        Dispatch(lookahead_groups=-1)
    assert str(error.value) == ("dispatch.lookahead_groups = -1: must be at least 0 (0: a batch)")


steps = st.lists(st.one_of(st.none(), st.tuples(st.sampled_from(DOMAINS), st.floats(0, 9))))


@given(steps, st.integers(1, 7), st.booleans())
def test_longest_first_never_loses_or_repeats_a_task(noted, lookahead, interrupted):
    rule = Dispatch(order="longest", lookahead_groups=lookahead)
    dispatcher = dispatcher_of(rule)
    opened = []
    for each in noted:
        if each is not None:
            dispatcher.durations.note(*each)
            continue
        opened.append(dispatcher.next_task())
        if interrupted:
            record = json.loads(json.dumps(dispatcher.record()))
            dispatcher = dispatcher_of(rule)
            dispatcher.restore(record)
    for start in range(0, len(opened), lookahead):
        block = sorted(opened[start : start + lookahead])
        whole = list(range(start, start + lookahead))
        assert block == whole if len(block) == lookahead else set(block) < set(whole)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 10_000), st.integers(1, 4), st.integers(1, 9), st.integers(0, 60))
def test_a_run_that_opens_the_longest_first_can_be_repeated_and_resumed(
    seed, groups_per_step, slots, moment
):
    batching = Batching(groups_per_step=groups_per_step, group_size=2)
    rules = Rules(steps=5, batching=batching, dispatch=LONGEST)
    scheduler = Scheduler(rules, domain_of=by_turns)
    world = World(
        rules=rules, random=Random(seed), slots=slots, failure_rate=0.1, scheduler=scheduler
    )
    for _ in range(moment):
        if not scheduler.done:
            world.step()
    record = json.loads(json.dumps(take_snapshot(scheduler)))
    resumed = restore(rules, record, domain_of=by_turns)
    assert json.loads(json.dumps(take_snapshot(resumed))) == record
    world.run()
    again = Scheduler(rules, domain_of=by_turns)
    for now, event, commands in world.log:
        assert again.handle(event, now) == commands
    kept = buffered(record)
    later = World(
        rules=rules,
        random=Random(seed + 1),
        slots=slots,
        scheduler=resumed,
        ends={id_: [] for id_ in kept},
        born={id_: world.born[id_] for id_ in kept},
        launched={id_: world.launched[id_] for id_ in kept},
    ).run()
    before = tasks_of(world, upto=record["next_group"])
    after = tasks_of(later)
    assert all(before.get(group, task) == task for group, task in after.items())
    tasks = before | after
    assert len(set(tasks.values())) == len(tasks)


def tasks_of(world, *, upto=10**9):
    """Return the task of each group before one."""
    found = [c for _, _, commands in world.log for c in commands if isinstance(c, Launch)]
    return {launch.group: launch.task for launch in found if launch.group < upto}


def test_every_task_is_of_one_domain_unless_told():
    assert {one_domain(index) for index in range(3)} == {""}
