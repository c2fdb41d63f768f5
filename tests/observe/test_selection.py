from random import Random

import pytest

from rollart.events import (
    Cancel,
    Drop,
    Launch,
    Train,
    TrajectoryCancelled,
    TrajectoryFailed,
    TrajectoryFinished,
    TrajectoryScored,
    Woke,
)
from rollart.observe.selection import Selection, Sums, as_json
from rollart.types import Failure, TrajectoryInfo

NOW = Woke(at_s=0.0)


def launch(id_, *, task=0, group=None, member=0, doubles=None):
    return Launch(
        id=id_,
        group=id_ if group is None else group,
        member=member,
        attempt=0,
        task=task,
        slot=0,
        seed=0,
        doubles=doubles,
    )


def finished(id_, *, turns=2, cost=10, reward=1.0, stop="terminated", unread=0):
    info = TrajectoryInfo(
        id=id_,
        born=0,
        reward=reward,
        success=True,
        turns=turns,
        cost=cost,
        stop=stop,
        unread=unread,
    )
    return TrajectoryFinished(info=info)


def train(*ids):
    return Train(version=0, groups=(ids,), staleness=0)


def test_sums_know_their_mean_and_its_error():
    sums = Sums()
    for value in (1.0, 2.0, 3.0, 4.0):
        sums.add(value)
    assert (sums.count, sums.mean) == (4, 2.5)
    assert sums.error == pytest.approx((1.25 / 3) ** 0.5)
    assert (Sums().mean, Sums().error) == (0.0, 0.0)


def test_every_ending_has_its_attempts_turns_tokens_and_reward_by_task():
    selection = Selection(task_name=lambda task: ("lake", "maths")[task])
    selection.add(NOW, [launch(id_, task=int(id_ > 1)) for id_ in range(5)])
    selection.add(finished(0, turns=3, cost=30, reward=0.5, stop="time_limit", unread=2), [])
    selection.add(finished(1, reward=None), [])
    selection.add(TrajectoryScored(id=1, reward=0.25), [train(0), Drop(ids=(1,), reason="stale")])
    failure = Failure(kind="env_error", message="boom")
    selection.add(TrajectoryFailed(id=2, failure=failure, cost=4, turns=1), [])
    selection.add(NOW, [Cancel(id=3, reason="stale")])
    selection.add(TrajectoryCancelled(id=3, cost=6, turns=2), [])
    late = {"attempts": 1, "turns_mean": 3, "tokens_mean": 30, "reward_mean": 0.5}
    assert selection.figures() == {
        "lake": {
            "dropped": {"attempts": 1, "turns_mean": 2, "tokens_mean": 10, "reward_mean": 0.25},
            "time_limit": late,
            "trained": late,
        },
        "maths": {
            "cancelled": {"attempts": 1, "turns_mean": 2, "tokens_mean": 6},
            "failed": {"attempts": 1, "turns_mean": 1, "tokens_mean": 4},
        },
    }
    row = selection.row()
    assert row["ended/trained/tokens_mean"] == 30
    assert row["tasks/maths/ended/cancelled/turns_mean"] == 2
    assert row["unread_turns"] == 2
    assert row["tasks/lake/lost_length"] == pytest.approx((20 - 30) / 20)
    assert "ended/trained/attempts" not in selection.row()
    assert as_json(selection)["selection_warnings"] == []


def play(selection, *, lost_cost, reason="stale", count=200, lost_reward=1.0):
    """Train `count` attempts of about ten tokens, and lose half as many of `lost_cost`."""
    random = Random(0)
    for id_ in range(count):
        selection.add(NOW, [launch(id_)])
        is_lost = id_ % 3 == 0
        cost = random.randint(8, 12) + (lost_cost - 10 if is_lost else 0)
        selection.add(finished(id_, cost=cost, reward=lost_reward if is_lost else 1.0), [])
        selection.add(NOW, [Drop(ids=(id_,), reason=reason) if is_lost else train(id_)])
    return selection


def test_trained_episodes_shorter_than_played_ones_are_worth_a_warning():
    (warning,) = play(Selection(), lost_cost=30).warnings().values()
    assert warning.startswith("trained episodes are at least 39% shorter than played ones")


def test_a_reward_that_was_lost_is_worth_a_warning():
    (warning,) = play(Selection(), lost_cost=10, lost_reward=0.0).warnings().values()
    assert warning.startswith("the reward of trained episodes (1.000) differs from")


@pytest.mark.parametrize(
    "case",
    [
        {"lost_cost": 10},
        {"lost_cost": 5},
        {"lost_cost": 30, "count": 20},
        {"lost_cost": 30, "reason": "zero_variance"},
        {"lost_cost": 30, "reason": "run_finished"},
    ],
    ids=str,
)
def test_noise_short_losses_and_what_was_asked_for_are_not(case):
    assert play(Selection(), **case).warnings() == {}


def test_the_slower_of_two_doubles_is_not_lost():
    selection = Selection()
    for group in range(100):
        first, second = 2 * group, 2 * group + 1
        selection.add(NOW, [launch(first, group=group), launch(second, group=group, doubles=0)])
        selection.add(finished(second), [Cancel(id=first, reason="surplus"), train(second)])
        selection.add(TrajectoryCancelled(id=first, cost=90, turns=9), [])
    assert selection.warnings() == {}
    assert selection.figures()[""]["cancelled"]["attempts"] == 100
