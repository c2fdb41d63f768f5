import json

from driven_scheduler import Driver

from rollart.control.rules import Batching, Rules
from rollart.control.scheduler import Scheduler, check
from rollart.control.snapshot import buffered, restore, take_snapshot
from rollart.control.staleness import Staleness
from rollart.events import Drop, Launch, RunStarted, Train
from rollart.types import EngineInfo

TWO = Batching(groups_per_step=1, group_size=2)


def reborn(run, record, **changes):
    """Restore from a record that has been through JSON; return the scheduler and its commands."""
    rules = Rules(**{"steps": run.rules.steps, "batching": TWO} | changes)
    scheduler = restore(rules, json.loads(json.dumps(record)))
    engine = EngineInfo(id="a", pool="gpu", version=record["version"])
    commands = scheduler.handle(RunStarted(engines=(engine,), slots=4), 0.0)
    check(scheduler)
    return scheduler, commands


def started():
    """Return a run of which group 0 is training and group 1 half finished."""
    run = Driver(batching=TWO, staleness=Staleness(alpha=1))
    run.finished(0, reward=0.5)
    run.finished(1)
    run.finished(2)
    return run


def test_a_snapshot_holds_finished_work_and_queues_what_was_in_flight():
    assert take_snapshot(started().scheduler) == {
        "version": 0,
        "next_group": 2,
        "next_trajectory": 4,
        "failures": 0,
        "filtered": 0,
        "dispatch": {"next_task": 2, "block": [], "durations": {"": (3, 0.0, 0.0)}},
        "adapting": {
            "alpha": {"level": 1, "leaning": 0},
            "extra_groups": {"level": 0, "leaning": 0},
            "least_waste": None,
        },
        "groups": [
            {
                "id": 0,
                "task": 0,
                "born": 0,
                "queued": [],
                "scored": [(0, 0, 0.5), (1, 1, 1.0)],
                "complete": True,
                "members": 2,
            },
            {
                "id": 1,
                "task": 1,
                "born": 0,
                "queued": [(1, 0)],
                "scored": [(0, 2, 1.0)],
                "complete": False,
                "members": 2,
            },
        ],
    }


def test_a_restored_run_trains_what_was_training_and_launches_what_was_in_flight():
    run = started()
    scheduler, commands = reborn(run, take_snapshot(run.scheduler))
    flown = run.launch(4, group=1, member=1, slot=0)
    assert commands == [Train(version=0, groups=((0, 1),), staleness=0), flown]
    assert [group.id for group in scheduler.training] == [0]


def test_a_group_of_which_nothing_finished_has_no_age():
    run = Driver(batching=TWO, staleness=Staleness(alpha=0))
    run.born(0, 0)
    (group,) = take_snapshot(run.scheduler)["groups"]
    assert (group["born"], group["queued"]) == (None, [(0, 0), (1, 0)])
    _, commands = reborn(run, take_snapshot(run.scheduler), staleness=Staleness(alpha=0))
    assert commands == [
        run.launch(2, group=0, slot=0),
        run.launch(3, group=0, member=1, slot=1),
    ]


def test_groups_already_trained_are_not_saved():
    run = started()
    run.serve(1)
    record = take_snapshot(run.scheduler)
    assert (record["version"], [group["id"] for group in record["groups"]]) == (1, [1, 2])


def test_the_buffer_must_hold_the_finished_trajectories_of_a_snapshot():
    assert list(buffered(take_snapshot(started().scheduler))) == [0, 1, 2]


def test_work_too_old_for_a_tighter_bound_is_dropped_when_the_run_goes_on():
    run = started()
    run.serve(1)
    _, commands = reborn(run, take_snapshot(run.scheduler), staleness=Staleness(alpha=0))
    assert commands[0] == Drop(ids=(2,), reason="stale")
    assert [type(command) for command in commands[1:]] == [Launch, Launch]


def test_a_restored_run_that_has_made_its_steps_is_done():
    run = started()
    run.serve(1)
    scheduler, commands = reborn(run, take_snapshot(run.scheduler), steps=1)
    assert commands == [Drop(ids=(2,), reason="run_finished")]
    assert scheduler.done


def test_a_fresh_scheduler_restored_is_a_fresh_scheduler():
    rules = Rules(steps=1)
    fresh = take_snapshot(Scheduler(rules))
    assert take_snapshot(restore(rules, fresh)) == fresh
