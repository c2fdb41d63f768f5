"""Single decisions of the scheduler, event by event."""

from dataclasses import replace

import pytest
from driven_scheduler import Driver

from rollart.control.rules import AREAL, ONE_OFF, ROLLART, SYNC, Batching, Filter, Redundancy, Retry
from rollart.control.staleness import Staleness
from rollart.events import (
    Cancel,
    Drop,
    EngineSuspended,
    EngineUpdated,
    Halt,
    Launch,
    Publish,
    Published,
    Resume,
    Score,
    ScoreFailed,
    StepFinished,
    StopRequested,
    Suspend,
    Train,
    TrajectoryScored,
    Update,
    Wake,
    Woke,
)


def test_a_run_starts_with_as_many_groups_as_the_window_and_the_slots_admit():
    window = Driver(staleness=Staleness(alpha=1))
    assert window.started == [window.launch(0), window.launch(1)]
    few = Driver(slots=1, staleness=Staleness(alpha=1))
    assert few.started == [few.launch(0)]
    assert few.finished(0) == [
        Train(version=0, groups=((0,),), staleness=0),
        few.launch(1, slot=0),
    ]


def test_members_of_a_group_share_its_task_and_differ_in_seed():
    run = Driver(batching=Batching(groups_per_step=1, group_size=2), staleness=Staleness(alpha=0))
    assert run.started == [run.launch(0), run.launch(1, group=0, member=1)]
    assert run.started[0].seed != run.started[1].seed


def test_weights_go_from_the_trainer_through_the_store_to_the_engine():
    run = Driver(staleness=Staleness(alpha=0))
    assert run.finished(0) == [Train(version=0, groups=((0,),), staleness=0)]
    assert run.serve(1) == [
        [Publish(version=1)],
        [Suspend(engine="a")],
        [Update(engine="a", version=1)],
        [Resume(engine="a"), run.launch(1)],
    ]


def test_a_trained_group_is_outstanding_until_its_weights_are_served():
    run = Driver(staleness=Staleness(alpha=1))
    run.finished(0)
    run.send(StepFinished(version=1))
    assert run.scheduler.groups.admission.consumed == 1
    run.send(Published(version=1))
    run.send(EngineSuspended(engine="a"))
    assert run.send(EngineUpdated(engine="a", version=1)) == [
        Resume(engine="a"),
        run.launch(2),
    ]
    assert run.scheduler.groups.admission.consumed == 0


def test_a_group_is_as_old_as_its_oldest_member():
    run = Driver(batching=Batching(groups_per_step=1, group_size=2), slots=9)
    run.born(0, 0)
    run.born(2, 0)
    run.finished(2)
    run.finished(3)
    run.serve(1)
    run.finished(1, born=1)
    assert run.finished(0, born=0)[0] == Train(version=1, groups=((0, 1),), staleness=1)


def test_what_a_step_makes_too_old_is_cancelled_and_dropped():
    run = Driver(
        staleness=Staleness(alpha=1, at_bound="drop"),
        redundancy=Redundancy(extra_groups=2, choice="finished"),
        slots=9,
    )
    for id_ in range(4):
        run.born(id_)
    run.finished(0)
    run.finished(1)
    run.serve(1)
    assert run.finished(2) == []
    assert run.send(StepFinished(version=2)) == [
        Publish(version=2),
        Cancel(id=3, reason="stale"),
        Drop(ids=(2,), reason="stale"),
        run.launch(5),
        run.launch(6),
    ]


def test_work_born_too_old_is_dropped_at_birth_and_at_the_end():
    run = Driver(
        staleness=Staleness(alpha=1, at_bound="drop"),
        redundancy=Redundancy(extra_groups=2, choice="finished"),
        slots=9,
    )
    run.finished(0)
    run.finished(1)
    run.serve(1)
    run.send(StepFinished(version=2))
    assert run.born(2, 0) == [Cancel(id=2, reason="stale"), run.launch(5)]
    assert run.finished(3, born=0) == [Drop(ids=(3,), reason="stale"), run.launch(6, slot=6)]


def test_areal_keeps_work_however_old_it_has_become():
    run = Driver(mode=AREAL, redundancy=Redundancy(extra_groups=1, choice="finished"), slots=9)
    run.finished(0)
    run.finished(1)
    run.serve(1)
    run.send(StepFinished(version=2))
    assert run.finished(2, born=0)[0] == Train(version=2, groups=((2,),), staleness=2)


def behind_schedule(at_bound, *, patience_s=4.0, later_s=6.0):
    """Return a run with two groups that must train by version 2, and a fresher one ready at 1."""
    run = Driver(staleness=Staleness(alpha=2, at_bound=at_bound, patience_s=patience_s))
    run.born(1)
    run.born(2)
    run.now = 6.0
    run.finished(0)
    run.now = later_s
    run.serve(1)
    return run, run.finished(3, born=1)


def test_waiting_at_the_bound_leaves_a_step_for_every_group_that_runs():
    run, commands = behind_schedule("wait")
    assert (commands, run.scheduler.waiting_for()) == ([], "work about to expire")
    assert run.finished(1) == [Train(version=1, groups=((1,),), staleness=1)]
    run.serve(2)
    assert run.finished(2) == [Train(version=2, groups=((2,),), staleness=2)]
    run.serve(3)
    assert run.scheduler.training[0].trajectories == (3,)


def test_pacing_at_the_bound_waits_as_long_as_its_patience():
    run, commands = behind_schedule("pace")
    assert commands == [Wake(at_s=10.0)]
    run.now = 9.0
    assert run.send(Woke(at_s=9.0)) == []
    run.now = 9.999
    assert run.send(Woke(at_s=10.0)) == [Train(version=1, groups=((3,),), staleness=0)]


def test_pacing_does_not_wait_for_work_long_overdue():
    _, commands = behind_schedule("pace", patience_s=100.0, later_s=60.0)
    assert commands == [Train(version=1, groups=((3,),), staleness=0)]


def test_pacing_asks_once_to_be_woken_when_the_work_is_late():
    run, commands = behind_schedule("pace", patience_s=100.0)
    assert commands == [Wake(at_s=18.0)]
    assert run.scheduler.waiting_for() == "work about to expire"
    run.now = 10.0
    assert run.send(Woke(at_s=9.0)) == []
    assert run.send(Woke(at_s=18.0)) == [Train(version=1, groups=((3,),), staleness=0)]


def test_pacing_ends_when_the_running_work_has_come():
    run, _ = behind_schedule("pace")
    assert run.finished(1) == [Train(version=1, groups=((1,),), staleness=1)]


def test_dropping_at_the_bound_never_waits():
    _, commands = behind_schedule("drop")
    assert commands == [Train(version=1, groups=((3,),), staleness=0)]


def test_the_papers_counting_waits_for_engines_two_steps_behind():
    run = Driver(staleness=Staleness(alpha=2, counting="serving"))
    for id_ in range(3):
        run.finished(id_)
    assert run.send(StepFinished(version=1))[1:] == [Train(version=1, groups=((1,),), staleness=1)]
    assert run.send(StepFinished(version=2)) == [Publish(version=2)]
    assert run.scheduler.waiting_for() == "weights"
    run.send(Published(version=2))
    run.send(EngineSuspended(engine="a"))
    assert run.send(EngineUpdated(engine="a", version=2))[1] == Train(
        version=2, groups=((2,),), staleness=2
    )


def test_a_run_says_what_its_next_step_waits_for():
    run = Driver(batching=Batching(groups_per_step=2, group_size=1))
    run.finished(0)
    assert run.scheduler.waiting_for() == "1 of 2 groups"
    run.finished(1)
    assert run.scheduler.waiting_for() == "the optimizer"


def test_a_batch_lists_its_groups_in_id_order_whatever_finished_first():
    run = Driver(batching=Batching(groups_per_step=2, group_size=1))
    run.finished(1)
    assert run.finished(0)[0] == Train(version=0, groups=((0,), (1,)), staleness=0)


def test_members_beyond_the_group_size_are_cancelled_when_enough_are_scored():
    run = Driver(
        staleness=Staleness(alpha=0), redundancy=Redundancy(extra_members=2, choice="finished")
    )
    assert run.finished(1) == [
        Cancel(id=0, reason="surplus"),
        Cancel(id=2, reason="surplus"),
        Train(version=0, groups=((1,),), staleness=0),
    ]
    assert run.cancelled(0) == []


def test_a_surplus_member_is_trained_only_in_place_of_one_that_failed():
    run = Driver(staleness=Staleness(alpha=0), redundancy=Redundancy(extra_members=2))
    assert run.finished(1) == []
    assert run.finished(2) == []
    assert run.failed(0) == [
        Drop(ids=(2,), reason="surplus"),
        Train(version=0, groups=((1,),), staleness=0),
    ]


def test_the_members_launched_first_are_waited_for():
    run = Driver(staleness=Staleness(alpha=0), redundancy=Redundancy(extra_members=2))
    run.finished(2)
    assert run.finished(0) == [
        Cancel(id=1, reason="surplus"),
        Drop(ids=(2,), reason="surplus"),
        Train(version=0, groups=((0,),), staleness=0),
    ]


def test_a_group_that_finishes_early_stands_by_for_an_earlier_one():
    run = Driver(mode=SYNC, redundancy=Redundancy(extra_groups=1), retry=Retry(max_attempts=1))
    assert run.finished(1) == []
    commands = run.failed(0)
    assert Train(version=0, groups=((1,),), staleness=0) in commands
    again = Driver(mode=SYNC, redundancy=Redundancy(extra_groups=1))
    again.finished(1)
    assert again.finished(0) == [
        Drop(ids=(1,), reason="surplus"),
        Train(version=0, groups=((0,),), staleness=0),
    ]


def test_running_work_older_than_alpha_is_trained_when_it_finishes():
    run = Driver(staleness=Staleness(alpha=1), slots=9)
    run.born(0)
    for id_, version in ((1, 1), (2, 2), (3, 3)):
        run.finished(id_, born=version - 1)
        run.serve(version)
    assert run.finished(0)[0] == Train(version=3, groups=((0,),), staleness=3)


def test_a_step_waits_for_running_work_at_its_greatest_age():
    run = Driver(staleness=Staleness(alpha=1, max_age=2), slots=9)
    run.born(0)
    for id_, version in ((1, 1), (2, 2)):
        run.finished(id_, born=version - 1)
        run.serve(version)
    assert not any(isinstance(each, Train) for each in run.finished(3, born=2))
    assert run.scheduler.waiting_for() == "work about to expire"
    assert run.finished(0)[0] == Train(version=2, groups=((0,),), staleness=2)


def test_a_cancelled_attempt_that_ends_by_itself_is_dropped_and_not_retried():
    run = Driver(
        staleness=Staleness(alpha=0), redundancy=Redundancy(extra_members=2, choice="finished")
    )
    run.finished(1)
    assert run.finished(0) == [Drop(ids=(0,), reason="surplus")]
    assert run.failed(2) == []
    assert run.scheduler.attempts.failures == 1


def test_a_cancelled_attempt_has_no_birth():
    run = Driver(
        staleness=Staleness(alpha=0), redundancy=Redundancy(extra_members=1, choice="finished")
    )
    run.finished(0)
    assert run.born(1, 0) == []
    assert len(run.scheduler.groups.rolling_ages) == 0


def test_a_failed_attempt_is_made_again_elsewhere_while_its_slot_rests():
    run = Driver(slots=2, staleness=Staleness(alpha=0), retry=Retry(jitter=0.0, spares=False))
    assert run.failed(0) == [run.launch(1, group=0, attempt=1, slot=1)]
    assert run.failed(1) == [Wake(at_s=0.5)]
    run.now = 0.5
    assert run.send(Woke(at_s=0.5)) == [run.launch(2, group=0, attempt=2, slot=0)]


def test_an_earlier_return_asks_for_an_earlier_wake():
    retry = Retry(jitter=0.0, max_attempts=9, backoff_s=1.0, spares=False)
    run = Driver(slots=2, staleness=Staleness(alpha=1), retry=retry)
    assert run.failed(0) == [Wake(at_s=1.0)]
    run.now = 1.0
    run.send(Woke(at_s=1.0))
    assert run.failed(2) == [Wake(at_s=3.0)]
    assert run.failed(1) == [Wake(at_s=2.0)]


def test_a_wake_that_was_overtaken_is_not_asked_for_again():
    retry = Retry(jitter=0.0, max_attempts=9, backoff_s=1.0, spares=False)
    run = Driver(slots=2, staleness=Staleness(alpha=1), retry=retry)
    run.failed(0)
    run.now = 1.0
    run.send(Woke(at_s=1.0))
    run.failed(2)
    run.failed(1)
    run.now = 2.0
    assert [type(command) for command in run.send(Woke(at_s=2.0))] == [Launch, Wake]
    run.now = 3.0
    assert [type(command) for command in run.send(Woke(at_s=3.0))] == [Launch]
    assert run.send(Woke(at_s=3.0)) == []


PAIR = Batching(groups_per_step=1, group_size=3, min_members=2)


def test_a_group_goes_on_without_members_that_failed_for_good():
    run = Driver(batching=PAIR, staleness=Staleness(alpha=0), retry=Retry(max_attempts=1))
    assert [run.failed(1), run.finished(0)] == [[], []]
    assert run.finished(2) == [Train(version=0, groups=((0, 2),), staleness=0)]


def test_a_group_with_too_few_members_left_is_dropped_and_replaced():
    run = Driver(batching=PAIR, staleness=Staleness(alpha=0), retry=Retry(max_attempts=1), slots=6)
    assert [run.finished(0), run.failed(1)] == [[], []]
    assert run.failed(2) == [
        Drop(ids=(0,), reason="too_few_members"),
        run.launch(3, group=1, member=0),
        run.launch(4, group=1, member=1),
        run.launch(5, group=1, member=2),
    ]


def test_a_run_in_which_everything_fails_gives_up_with_the_last_reason():
    run = Driver(retry=Retry(give_up_after=2), slots=3)
    run.failed(0)
    assert run.failed(2) == [
        Halt(message="2 attempts in a row failed; the last: env_error: boom"),
        Cancel(id=1, reason="interrupted"),
    ]
    run.cancelled(1)
    assert run.scheduler.done


def test_one_finished_attempt_between_failures_keeps_a_run_going():
    run = Driver(retry=Retry(give_up_after=2))
    run.failed(0)
    run.finished(1)
    assert Halt not in map(type, run.failed(2))


def test_trajectories_are_scored_as_they_end():
    run = Driver(staleness=Staleness(alpha=0))
    assert run.finished(0, reward=None) == [Score(ids=(0,))]
    assert run.send(TrajectoryScored(id=0, reward=1.0)) == [
        Train(version=0, groups=((0,),), staleness=0)
    ]


def test_a_trajectory_that_cannot_be_scored_is_dropped_and_made_again():
    run = Driver(staleness=Staleness(alpha=0))
    run.finished(0, reward=None)
    assert run.send(ScoreFailed(id=0, message="judge down")) == [
        Drop(ids=(0,), reason="score_failed"),
        run.launch(1, group=0, attempt=1),
    ]


@pytest.mark.parametrize(
    "answer", [TrajectoryScored(id=0, reward=1.0), ScoreFailed(id=0, message="judge down")]
)
def test_a_score_that_comes_after_its_group_is_complete_changes_nothing(answer):
    run = Driver(
        staleness=Staleness(alpha=0), redundancy=Redundancy(extra_members=1, choice="finished")
    )
    run.finished(0, reward=None)
    assert run.finished(1) == [
        Drop(ids=(0,), reason="surplus"),
        Train(version=0, groups=((1,),), staleness=0),
    ]
    assert run.send(answer) == []
    assert run.scheduler.attempts.by_id == {}


RIVALS = Batching(groups_per_step=1, group_size=2, min_members=2)


def test_attempts_that_are_compared_are_scored_when_the_last_has_finished():
    run = Driver(batching=RIVALS, staleness=Staleness(alpha=0))
    assert run.rival(1) == []
    assert run.rival(0) == [Score(ids=(0, 1), together=True)]
    assert run.send(TrajectoryScored(id=0, reward=1.0)) == []
    assert run.send(TrajectoryScored(id=1, reward=0.0)) == [
        Train(version=0, groups=((0, 1),), staleness=0)
    ]


def test_enough_rivals_are_compared_at_once_and_the_rest_is_surplus():
    run = Driver(
        batching=RIVALS,
        staleness=Staleness(alpha=0),
        redundancy=Redundancy(extra_members=1, choice="finished"),
    )
    run.rival(2)
    assert run.rival(0) == [
        Cancel(id=1, reason="surplus"),
        Score(ids=(0, 2), together=True),
    ]


def test_rivals_are_compared_without_a_member_that_is_lost_for_good():
    trio = Batching(groups_per_step=1, group_size=3, min_members=2)
    run = Driver(batching=trio, staleness=Staleness(alpha=0), retry=Retry(max_attempts=1))
    run.rival(0)
    run.rival(1)
    assert run.failed(2) == [Score(ids=(0, 1), together=True)]


def test_a_comparison_that_fails_is_not_made_again():
    run = Driver(batching=RIVALS, staleness=Staleness(alpha=0))
    run.rival(0)
    run.rival(1)
    assert run.send(ScoreFailed(id=0, message="the judge is away")) == [
        Drop(ids=(0,), reason="score_failed")
    ]
    assert run.send(ScoreFailed(id=1, message="the judge is away")) == [
        Drop(ids=(1,), reason="score_failed"),
        run.launch(2, group=1),
        run.launch(3, group=1, member=1),
    ]


def test_a_run_whose_scores_all_fail_ends_with_the_last_reason():
    run = Driver(staleness=Staleness(alpha=0), retry=Retry(give_up_after=2))
    run.finished(0, reward=None)
    run.send(ScoreFailed(id=0, message="no grader"))
    run.finished(1, reward=None)
    commands = run.send(ScoreFailed(id=1, message="no grader here"))
    assert Halt(message="2 scores in a row failed; the last: no grader here") in commands
    assert run.scheduler.done


def test_a_score_between_failed_ones_keeps_the_run_going():
    run = Driver(staleness=Staleness(alpha=1), retry=Retry(give_up_after=2))
    run.finished(0, reward=None)
    run.finished(1, reward=None)
    run.send(ScoreFailed(id=0, message="no grader"))
    run.send(TrajectoryScored(id=1, reward=1.0))
    run.finished(2, reward=None)
    run.send(ScoreFailed(id=2, message="no grader"))
    assert run.scheduler.ending is None


def test_a_run_ends_without_waiting_for_scores_that_nobody_wants():
    run = Driver(staleness=Staleness(alpha=0))
    run.finished(0, reward=None)
    assert run.send(StopRequested()) == [Drop(ids=(0,), reason="interrupted")]
    assert run.scheduler.done


def test_sync_scores_when_the_whole_batch_has_rolled_out():
    run = Driver(mode=SYNC, batching=Batching(groups_per_step=2, group_size=1))
    assert run.finished(0, reward=None) == []
    assert run.finished(1, reward=None) == [Score(ids=(0, 1))]


def test_sync_scores_at_once_when_what_was_queued_is_no_longer_wanted():
    run = Driver(
        mode=SYNC,
        slots=1,
        batching=Batching(groups_per_step=2, group_size=1),
        redundancy=Redundancy(extra_members=1, choice="finished"),
    )
    run.finished(0, reward=None)
    run.finished(1, reward=None)
    assert run.finished(2, reward=1.0) == [Score(ids=(0, 1))]


def test_sync_does_not_score_what_was_dropped_meanwhile():
    run = Driver(mode=SYNC, redundancy=Redundancy(extra_members=1, choice="finished"))
    assert run.finished(0, reward=None) == []
    assert run.finished(1, reward=1.0) == [
        Drop(ids=(0,), reason="surplus"),
        Train(version=0, groups=((1,),), staleness=0),
    ]


def test_groups_still_rolling_are_surplus_when_an_iteration_has_its_batch():
    run = Driver(mode=SYNC, redundancy=Redundancy(extra_groups=1, choice="finished"))
    assert run.finished(1) == [
        Cancel(id=0, reason="surplus"),
        Train(version=0, groups=((1,),), staleness=0),
    ]


def test_one_off_rolls_out_the_next_batch_while_the_last_one_trains():
    run = Driver(mode=ONE_OFF)
    assert run.started == [run.launch(0)]
    assert run.finished(0) == [Train(version=0, groups=((0,),), staleness=0), run.launch(1)]
    assert run.finished(1) == []
    assert run.send(StepFinished(version=1)) == [
        Publish(version=1),
        Train(version=1, groups=((1,),), staleness=1),
    ]


def test_nothing_starts_while_idle_engines_change_their_weights():
    run = Driver(mode=ONE_OFF, retry=Retry(max_attempts=1))
    run.finished(0)
    run.send(StepFinished(version=1))
    assert run.send(Published(version=1)) == []
    assert run.failed(1) == [Suspend(engine="a")]
    assert run.send(EngineSuspended(engine="a")) == [Update(engine="a", version=1)]
    assert run.send(EngineUpdated(engine="a", version=1)) == [Resume(engine="a"), run.launch(2)]


def test_a_version_published_while_another_loads_waits_for_it():
    run = Driver(engines=("a", "b"), staleness=Staleness(alpha=2))
    run.finished(0)
    run.finished(1)
    run.send(StepFinished(version=1))
    run.send(Published(version=1))
    run.send(StepFinished(version=2))
    assert run.send(Published(version=2)) == []
    assert run.send(EngineUpdated(engine="a", version=1)) == [Resume(engine="a")]
    assert run.send(EngineUpdated(engine="b", version=1)) == [
        Resume(engine="b"),
        Suspend(engine="a"),
        Suspend(engine="b"),
        run.launch(3),
    ]


def test_groups_whose_rewards_are_equal_are_replaced_when_asked():
    run = Driver(
        batching=Batching(groups_per_step=1, group_size=2),
        staleness=Staleness(alpha=0),
        filter=Filter(drop_zero_variance=True, refill_limit=1),
    )
    run.finished(0, reward=1.0)
    assert run.finished(1, reward=1.0) == [
        Drop(ids=(0, 1), reason="zero_variance"),
        run.launch(2, group=1),
        run.launch(3, group=1, member=1),
    ]
    run.finished(2, reward=1.0)
    assert run.finished(3, reward=1.0) == [Train(version=0, groups=((2, 3),), staleness=0)]


def test_a_run_ends_when_its_last_weights_are_served():
    run = Driver(
        steps=1,
        staleness=Staleness(alpha=0),
        redundancy=Redundancy(extra_groups=2, choice="finished"),
    )
    run.finished(0)
    assert run.finished(1) == []
    assert run.send(StepFinished(version=1)) == [
        Publish(version=1),
        Drop(ids=(1,), reason="stale"),
        Cancel(id=2, reason="run_finished"),
    ]
    run.cancelled(2)
    assert not run.scheduler.done
    run.send(Published(version=1))
    run.send(EngineSuspended(engine="a"))
    assert run.send(EngineUpdated(engine="a", version=1)) == [Resume(engine="a")]
    assert run.scheduler.done


def test_an_interrupted_run_cancels_what_runs_and_keeps_what_finished():
    run = Driver(batching=Batching(groups_per_step=2, group_size=2), slots=6)
    run.finished(0)
    run.finished(1)
    run.finished(2)
    run.finished(3, reward=None)
    assert run.send(StopRequested()) == [
        Drop(ids=(3,), reason="interrupted"),
        *[Cancel(id=id_, reason="interrupted") for id_ in (4, 5, 6, 7)],
    ]
    assert run.send(StopRequested()) == []
    run.send(TrajectoryScored(id=3, reward=1.0))
    for id_ in (4, 5, 6, 7):
        assert run.cancelled(id_) == []
    assert run.scheduler.done
    assert [(g.state, g.trajectories) for g in run.scheduler.groups.by_id.values()] == [
        ("ready", (0, 1)),
        ("rolling", (2,)),
        ("rolling", ()),
        ("rolling", ()),
    ]


def test_the_bound_of_a_mode_replaces_the_configs():
    assert Driver(mode=replace(ROLLART, alpha=3)).scheduler.bound.alpha == 3


def test_a_value_that_is_no_event_is_a_broken_program():
    with pytest.raises(AssertionError, match="unreachable"):
        Driver().send(object())
