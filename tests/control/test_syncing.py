from random import Random

import pytest
from world import World

from rollart.control.batching import Batching
from rollart.control.rules import Rules
from rollart.control.staleness import Staleness
from rollart.control.syncing import Syncer, Syncing
from rollart.events import Resume, Suspend, Update
from rollart.types import EngineInfo


def syncer(order, **held):
    """Return a syncer whose engines hold these versions."""
    result = Syncer(Syncing(order=order))
    result.join(EngineInfo(id=name, pool="gpu", version=v) for name, v in held.items())
    return result


def test_all_engines_change_weights_together():
    sync = syncer("all", a=0, b=0)
    assert sync.begin(1) == [Suspend(engine="a"), Suspend(engine="b")]
    assert sync.suspended("b") == [Update(engine="b", version=1)]
    assert sync.updated("b", 1) == [Resume(engine="b")]
    assert (sync.active, sync.served) == (True, 0)
    assert sync.updated("a", 1) == [Resume(engine="a")]
    assert (sync.active, sync.served) == (False, 1)
    sync.check()


def test_rolling_engines_change_weights_one_after_another():
    sync = syncer("rolling", a=0, b=0)
    assert sync.begin(1) == [Suspend(engine="a")]
    sync.check()
    assert sync.updated("a", 1) == [Resume(engine="a"), Suspend(engine="b")]
    assert (sync.active, sync.served) == (True, 0)
    assert sync.updated("b", 1) == [Resume(engine="b")]
    assert (sync.active, sync.served) == (False, 1)


def test_engines_that_hold_the_version_are_left_alone():
    assert syncer("all", a=1, b=2).begin(2) == [Suspend(engine="a")]
    idle = syncer("all", a=2)
    assert (idle.begin(2), idle.active) == ([], False)


def test_before_engines_join_version_zero_is_served():
    sync = Syncer(Syncing())
    sync.check()
    assert (sync.served, sync.active) == (0, False)


@pytest.mark.parametrize("seed", range(8))
def test_weights_awaited_by_every_batch_are_loaded_when_nothing_else_can_come(seed):
    rules = Rules(
        steps=3,
        batching=Batching(groups_per_step=1, group_size=1),
        staleness=Staleness(alpha=1),
        syncing=Syncing(when="batch"),
    )
    assert len(World(rules=rules, random=Random(seed), slots=1).run().trained) == 3
