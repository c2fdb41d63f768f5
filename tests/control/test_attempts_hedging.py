from dataclasses import replace
from random import Random

import pytest
from driven_scheduler import Driver
from world import World

from rollart.control.attempts import Hedges
from rollart.control.rules import Batching, Redundancy, Retry, Rules
from rollart.control.staleness import Staleness
from rollart.errors import ConfigError
from rollart.events import Cancel, Train, Wake, Woke
from rollart.types import TrajectoryId

A, B, C = (TrajectoryId(number) for number in range(3))


def test_nothing_is_overdue_when_hedging_is_off():
    hedges = Hedges(0.0)
    hedges.launch(A, 0.0)
    hedges.launch(B, 0.0)
    hedges.finish(A, 1.0)
    assert hedges.overdue(1000.0) == []
    assert hedges.next_s is None
    assert hedges.stop(B, 1000.0) is False


def test_an_attempt_is_overdue_once_after_a_multiple_of_the_usual_time():
    hedges = Hedges(2.0)
    hedges.launch(A, 0.0)
    hedges.launch(B, 0.5)
    assert hedges.next_s is None
    hedges.finish(A, 1.0)
    hedges.launch(C, 1.0)
    assert hedges.next_s == 2.5
    assert hedges.overdue(2.4) == []
    assert hedges.overdue(3.0) == [B, C]
    assert hedges.overdue(100.0) == []


def test_the_usual_time_follows_what_finishes_and_one_long_attempt_moves_it_little():
    hedges = Hedges(2.0)
    hedges.launch(A, 0.0)
    hedges.launch(B, 0.0)
    hedges.launch(C, 0.0)
    hedges.finish(A, 1.0)
    hedges.finish(B, 1.9)
    assert hedges.overdue(2.0) == []
    assert hedges.next_s == pytest.approx(2.0 * 1.045)
    assert hedges.overdue(2.1) == [C]


def test_a_stopped_attempt_was_overdue_if_it_ran_too_long():
    hedges = Hedges(2.0)
    hedges.launch(A, 0.0)
    hedges.launch(B, 0.0)
    hedges.launch(C, 0.0)
    assert hedges.stop(C, 50.0) is False
    hedges.finish(A, 1.0)
    assert hedges.stop(B, 2.5) is True
    assert hedges.overdue(100.0) == []


def test_a_hedge_must_wait_at_least_the_usual_time():
    with pytest.raises(ConfigError, match="hedge_after"):
        Redundancy(hedge_after=0.5)


def orders(commands):
    """Return commands other than timers."""
    return [each for each in commands if not isinstance(each, Wake)]


def hedged(**rules):
    """Return a run whose second attempt is overdue and doubled by the attempt 4."""
    run = Driver(
        batching=Batching(groups_per_step=1, group_size=2),
        staleness=Staleness(alpha=0),
        redundancy=Redundancy(hedge_after=2.0),
        slots=5,
        **rules,
    )
    run.now = 1.0
    run.finished(0)
    run.now = 3.0
    (double,) = run.send(Woke(at_s=2.0))
    assert double == replace(run.launch(2, group=0, member=2, slot=2), doubles=1, seed=double.seed)
    assert double.seed == run.launch(1, group=0, member=1).seed
    return run


def test_the_first_of_two_doubles_to_finish_is_trained_and_the_other_stopped():
    run = hedged()
    trained = Train(version=0, groups=((0, 2),), staleness=0)
    assert orders(run.finished(2)) == [Cancel(id=1, reason="surplus"), trained]
    run = hedged()
    trained = Train(version=0, groups=((0, 1),), staleness=0)
    assert orders(run.finished(1)) == [Cancel(id=2, reason="surplus"), trained]


def test_a_double_takes_the_place_of_an_attempt_that_fails():
    run = hedged()
    assert orders(run.failed(1)) == []
    assert orders(run.finished(2)) == [Train(version=0, groups=((0, 2),), staleness=0)]


def test_a_double_that_fails_is_not_made_again():
    run = hedged()
    assert orders(run.failed(2)) == []
    assert orders(run.finished(1)) == [Train(version=0, groups=((0, 1),), staleness=0)]


def test_a_member_whose_two_doubles_fail_is_made_again():
    run = hedged()
    run.failed(2)
    (again,) = orders(run.failed(1))
    assert again == run.launch(3, group=0, member=1, attempt=1, slot=again.slot)


@pytest.mark.parametrize("seed", range(20))
def test_hung_environments_are_overtaken_without_any_timeout(seed):
    rules = Rules(
        steps=5,
        batching=Batching(groups_per_step=2, group_size=3),
        staleness=Staleness(alpha=1),
        redundancy=Redundancy(hedge_after=2.0),
        retry=Retry(backoff_s=1e6, backoff_max_s=1e7),
    )
    world = World(rules=rules, random=Random(seed), slots=8, hung=frozenset({1, 4})).run()
    assert len(world.trained) == 5
    assert {len(ends) for ends in world.ends.values()} == {1}
