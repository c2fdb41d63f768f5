import pytest
from driven_scheduler import Driver

from rollart.control.adaptive import Adapter, Lever, Shares
from rollart.control.groups import Attempt, Group
from rollart.control.rules import ONE_OFF, ROLLART, SYNC_PLUS, Batching, Redundancy, Rules
from rollart.control.staleness import Staleness
from rollart.errors import ConfigError
from rollart.events import (
    Adapt,
    Drop,
    Launch,
    RunStarted,
    StepFinished,
    StopRequested,
    Train,
    TrajectoryCancelled,
    TrajectoryFailed,
    TrajectoryFinished,
    TurnCut,
)
from rollart.types import Failure, TrajectoryInfo

ON = Redundancy(extra_groups=1, adaptive=True)
WINDOW = Staleness(alpha=3, adaptive=True)


def adapter(*, groups_per_step=4, redundancy=ON, staleness=WINDOW, mode=ROLLART):
    rules = Rules(
        steps=9,
        mode=mode,
        batching=Batching(groups_per_step=groups_per_step, group_size=1),
        redundancy=redundancy,
        staleness=staleness,
    )
    return Adapter(rules, bound=staleness)


def shares(**changes):
    nothing = {"wait": 0.0, "held": 0.0, "tail": 0.0, "stale": 0.0, "surplus": 0.0, "idle": 0.0}
    return Shares(**nothing | changes)


def finished(id_, tokens):
    info = TrajectoryInfo(
        id=id_, born=0, reward=1.0, success=True, turns=1, cost=tokens, stop="terminated"
    )
    return TrajectoryFinished(info=info)


def train(*ids):
    return Train(version=0, groups=(ids,), staleness=0)


class Steps:
    """Feeds an adapter whole steps: when groups complete, and what is thrown away."""

    def __init__(self, adapter, *, warm=True, busy=2):
        self.adapter = adapter
        self.now = 0.0
        self.ids = 0
        launches = [LAUNCH] * busy
        self.started = adapter.note(0.0, RunStarted(engines=(), slots=2), launches)
        for _ in range(adapter.alpha.highest + 1 if warm else 0):
            self.take(*EVEN)

    def take(self, *completions, busy_s=0.0, tokens=100, stale=0, surplus=0):
        """Make one step: the trainer is busy first; groups complete at times since the last."""
        start = self.now
        for reason, wasted in (("stale", stale), ("surplus", surplus)):
            if wasted:
                self.waste(reason, wasted)
        for at_s in completions:
            self.adapter.complete(start + at_s)
        self.adapter.note(start + busy_s, StepFinished(version=1), [])
        self.now = start + max(busy_s, *completions)
        self.ids += 1
        commands = [train(self.ids), LAUNCH]
        levels = self.adapter.note(self.now, finished(self.ids, tokens), commands)
        self.adapter.check()
        return levels

    def waste(self, reason, tokens):
        """Drop a complete group."""
        self.ids += 1
        self.adapter.note(self.now, finished(self.ids, tokens), [LAUNCH])
        self.adapter.lose(Group(id=0, scored={0: (self.ids, 1.0)}), reason)
        self.adapter.note(self.now, StopRequested(), [Drop(ids=(self.ids,), reason=reason)])


LAUNCH = Launch(id=0, group=0, member=0, attempt=0, task=0, slot=0, seed=0)
EVEN = (1.0, 2.0, 3.0, 4.0)
TAILED = (1.0, 1.0, 1.0, 4.0)


def test_waiting_calls_for_extra_groups_while_the_waste_they_add_is_small():
    uneven = shares(tail=0.1, stale=0.3)
    assert uneven.redundancy_call(cost=0.4, least_waste=0.25) == 1
    assert uneven.redundancy_call(cost=0.4, least_waste=0.15) == 0
    assert uneven.redundancy_call(cost=0.4, least_waste=0.05) == -1
    assert uneven.redundancy_call(cost=0.08, least_waste=0.3) == 0


def test_waste_while_nobody_waits_calls_for_fewer_extra_groups():
    assert shares(surplus=0.1).redundancy_call(cost=0.0, least_waste=0.1) == -1
    assert shares(surplus=0.01).redundancy_call(cost=0.0, least_waste=0.0) == 0


def test_groups_that_take_alike_times_in_busy_environments_call_for_no_extra_ones():
    assert shares(wait=0.9).redundancy_call(cost=0.9, least_waste=0.0) == 0


def test_environments_that_idle_while_the_trainer_waits_call_for_extra_groups():
    assert shares(idle=0.2).redundancy_call(cost=0.9, least_waste=0.0) == 1
    assert shares(idle=0.2).redundancy_call(cost=0.0, least_waste=0.0) == 0
    assert shares(idle=0.2, stale=0.3).redundancy_call(cost=0.3, least_waste=0.0) == -1


def test_a_running_mean_moves_a_part_of_the_way():
    mean = shares(wait=1.0).towards(shares(held=1.0, tail=1.0, stale=1.0, surplus=1.0, idle=1.0))
    assert mean == Shares(wait=0.7, held=0.3, tail=0.3, stale=0.3, surplus=0.3, idle=0.3)


def test_waste_without_waiting_calls_for_a_smaller_window_and_the_opposite_for_a_larger():
    assert shares(stale=0.2).window_call() == -1
    assert shares(wait=0.2).window_call() == 1
    assert shares(wait=0.2, held=0.2).window_call() == -1
    assert shares(wait=0.4, held=0.2).window_call() == 0
    assert shares(wait=0.2, stale=0.2).window_call() == 0
    assert shares().window_call() == 0


def test_a_lever_moves_when_the_same_is_called_for_twice_in_a_row_and_stops_at_its_bounds():
    lever = Lever(level=2, lowest=1, highest=6, step=3)
    levels = []
    for direction in (1, -1, 1, 0, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1):
        lever.call(direction)
        levels.append(lever.level)
    assert levels == [2, 2, 2, 2, 2, 5, 5, 6, 6, 3, 3, 1, 1, 1]


def test_a_run_says_the_levels_it_starts_with():
    assert Steps(adapter()).started == Adapt(alpha=3, extra_groups=1)


def test_nothing_is_judged_before_a_full_window_was_trained_on():
    steps = Steps(adapter(), warm=False)
    assert [steps.take(*TAILED) for _ in range(5)] == [None] * 5
    assert steps.take(*TAILED) == Adapt(alpha=3, extra_groups=2)


def test_waiting_for_the_slowest_groups_raises_the_extra_groups():
    steps = Steps(adapter())
    moves = [steps.take(*TAILED) for _ in range(4)]
    assert moves == [None, Adapt(alpha=3, extra_groups=2), None, None]


def test_groups_that_come_evenly_have_no_tail_however_long_the_trainer_waits():
    steps = Steps(adapter())
    assert [steps.take(*EVEN) for _ in range(4)] == [None] * 4


def test_idle_environments_raise_the_extra_groups_where_groups_are_kept_for_the_next_batch():
    steps = Steps(adapter(), busy=1)
    assert [steps.take(*EVEN) for _ in range(2)] == [None, Adapt(alpha=3, extra_groups=2)]
    steps = Steps(adapter(mode=ONE_OFF, staleness=Staleness(alpha=1)), busy=1)
    assert [steps.take(*EVEN) for _ in range(4)] == [None] * 4


def test_where_a_batch_rolls_out_together_only_its_tail_is_time_to_save():
    steps = Steps(adapter(mode=ONE_OFF, staleness=Staleness(alpha=1)))
    assert [steps.take(*EVEN, surplus=30) for _ in range(2)] == [
        None,
        Adapt(alpha=1, extra_groups=0),
    ]
    steps = Steps(adapter(mode=ONE_OFF, staleness=Staleness(alpha=1)))
    assert [steps.take(*TAILED) for _ in range(2)] == [None, Adapt(alpha=1, extra_groups=2)]


def test_a_tail_behind_a_busy_trainer_costs_nothing():
    steps = Steps(adapter())
    assert [steps.take(*TAILED, busy_s=4.0) for _ in range(4)] == [None] * 4


def test_waste_lowers_the_extra_groups_and_the_window():
    steps = Steps(adapter())
    moves = [steps.take(*EVEN, busy_s=5.0, stale=30, surplus=10) for _ in range(4)]
    assert moves == [None, Adapt(alpha=2, extra_groups=0), None, Adapt(alpha=1, extra_groups=0)]


def test_a_rule_that_is_not_adaptive_stays_as_configured():
    fixed = Staleness(alpha=3)
    steps = Steps(adapter(staleness=fixed))
    moves = [steps.take(*EVEN, busy_s=5.0, stale=50) for _ in range(2)]
    assert moves == [None, Adapt(alpha=3, extra_groups=0)]
    steps = Steps(adapter(redundancy=Redundancy(extra_groups=1)))
    moves = [steps.take(*EVEN, busy_s=5.0, stale=50) for _ in range(2)]
    assert moves == [None, Adapt(alpha=2, extra_groups=1)]
    assert not adapter(staleness=fixed, redundancy=Redundancy()).is_on


def test_two_steps_at_one_moment_tell_nothing_and_too_few_groups_have_no_tail():
    steps = Steps(adapter(staleness=Staleness(alpha=0)), warm=False)
    moves = [steps.take(at_s) for at_s in (0.0, 0.0, 9.0)]
    assert moves == [None] * 3
    assert steps.adapter.record()["extra_groups"] == {"level": 1, "leaning": 0}


def test_tokens_of_attempts_stopped_while_they_run_count_when_they_are_known():
    steps = Steps(adapter())
    in_flight = {n: Attempt(id=n, group=Group(id=0), member=n, number=0, slot=n) for n in (90, 91)}
    failure = Failure(kind="env_error", message="")
    for _ in range(2):
        steps.adapter.lose(Group(id=0, in_flight=in_flight), "stale")
        steps.adapter.lose(Group(id=1, scored={0: (92, 1.0)}), "zero_variance")
        told = steps.adapter.note
        told(steps.now, TrajectoryCancelled(id=90, cost=5), [LAUNCH])
        told(steps.now, TurnCut(id=90, cost=15), [])
        told(steps.now, TurnCut(id=93, cost=999), [])
        told(steps.now, TrajectoryFailed(id=91, failure=failure, cost=20), [LAUNCH])
        told(steps.now, TrajectoryCancelled(id=93, cost=999), [LAUNCH])
        moved = steps.take(*EVEN, busy_s=5.0)
    assert moved == Adapt(alpha=2, extra_groups=0)


def test_levels_go_on_from_a_snapshot_within_the_bounds_of_the_run():
    steps = Steps(adapter())
    for _ in range(3):
        steps.take(*EVEN, busy_s=5.0, stale=50)
    record = steps.adapter.record()
    assert record == {
        "alpha": {"level": 2, "leaning": -1},
        "extra_groups": {"level": 0, "leaning": -1},
        "least_waste": pytest.approx(1 / 3),
    }
    again = adapter()
    assert again.restore(record) == Adapt(alpha=2, extra_groups=0)
    assert again.record() == record
    tighter = adapter(staleness=Staleness(alpha=1, adaptive=True), redundancy=Redundancy())
    assert tighter.restore(record) == Adapt(alpha=1, extra_groups=0)


def test_a_large_batch_adapts_in_larger_steps_up_to_half_of_it():
    large = adapter(groups_per_step=64)
    assert (large.extra_groups.step, large.extra_groups.highest) == (16, 32)
    capped = adapter(redundancy=Redundancy(adaptive=True, max_extra_groups=3))
    assert capped.extra_groups.highest == 3


@pytest.mark.parametrize(
    "bad", [{"max_extra_groups": -1}, {"adaptive": True, "extra_groups": 3, "max_extra_groups": 2}]
)
def test_a_limit_below_the_start_is_refused(bad):
    with pytest.raises(ConfigError, match=r"redundancy\.max_extra_groups"):
        Redundancy(**bad)


def test_a_run_whose_tails_are_long_starts_more_groups_and_says_so():
    batching = Batching(groups_per_step=3, group_size=1)
    rules = {"mode": SYNC_PLUS, "batching": batching, "redundancy": Redundancy(adaptive=True)}
    run = Driver(slots=9, **rules)
    assert run.started[-1] == Adapt(alpha=0, extra_groups=0)
    said, ids = [], 0
    for version in range(3):
        for wait_s in (0.0, 0.0, 9.0):
            run.now += wait_s
            said += [each for each in run.finished(ids, born=version) if isinstance(each, Adapt)]
            ids += 1
        run.serve(version + 1)
    assert said == [Adapt(alpha=0, extra_groups=1)]
    assert run.scheduler.groups.admission.redundancy.extra_groups == 1
    assert run.scheduler.groups.admission.rolling == 4
