from random import Random

import pytest
from world import World

from rollart.control.rules import Batching, Rules, Syncing
from rollart.control.staleness import Staleness
from rollart.control.weight_sync import Syncer
from rollart.events import Admit, Resume, Suspend, Update
from rollart.types import EngineInfo


def syncer(order, *, is_uniform=False, **held):
    """Return a syncer whose engines hold these versions."""
    result = Syncer(Syncing(order=order), is_uniform=is_uniform)
    result.join(EngineInfo(id=name, pool="gpu", version=v) for name, v in held.items())
    return result


def test_all_engines_change_weights_together():
    sync = syncer("all", a=0, b=0)
    assert sync.begin(1) == [Suspend(engine="a"), Suspend(engine="b")]
    assert sync.suspended("b") == [Update(engine="b", version=1)]
    assert sync.updated("b", 1, newest=1) == [Resume(engine="b")]
    assert (sync.active, sync.served) == (True, 0)
    assert sync.updated("a", 1, newest=1) == [Resume(engine="a")]
    assert (sync.active, sync.served) == (False, 1)
    sync.check()


def test_rolling_engines_change_weights_one_after_another():
    sync = syncer("rolling", a=0, b=0)
    assert sync.begin(1) == [Suspend(engine="a")]
    sync.check()
    assert sync.updated("a", 1, newest=1) == [Resume(engine="a"), Suspend(engine="b")]
    assert (sync.active, sync.served) == (True, 0)
    assert sync.updated("b", 1, newest=1) == [Resume(engine="b")]
    assert (sync.active, sync.served) == (False, 1)


def test_engines_that_hold_the_version_are_left_alone():
    assert syncer("all", a=1, b=2).begin(2) == [Suspend(engine="a")]
    idle = syncer("all", a=2)
    assert (idle.begin(2), idle.active) == ([], False)


def late(name, version):
    return EngineInfo(id=name, pool="gpu", version=version)


def test_an_engine_that_joins_with_what_the_others_serve_serves_at_once():
    sync = syncer("all", a=1, b=2)
    assert sync.join_late(late("c", 1), newest=2) == [Admit(engine="c")]
    assert sync.join_late(late("d", 2), newest=2) == [Admit(engine="d")]
    assert sync.begin(2) == [Suspend(engine="a"), Suspend(engine="c")]
    sync.check()


def test_an_engine_that_joins_behind_the_others_loads_until_it_has_caught_up():
    sync = syncer("all", a=2)
    assert sync.join_late(late("b", 0), newest=2) == [Update(engine="b", version=2)]
    assert (sync.served, sync.active) == (2, False)
    sync.begin(3)
    sync.updated("a", 3, newest=3)
    assert sync.updated("b", 2, newest=3) == [Update(engine="b", version=3)]
    assert sync.updated("b", 3, newest=3) == [Admit(engine="b")]
    sync.check()


def test_an_engine_that_joins_when_all_others_are_gone_loads_the_newest_weights():
    sync = syncer("all", a=1)
    assert sync.lose("a", newest=1) == []
    assert sync.join_late(late("b", 1), newest=4) == [Update(engine="b", version=4)]
    assert sync.updated("b", 4, newest=4) == [Admit(engine="b")]
    assert sync.served == 4


def test_losing_the_last_engine_that_lags_raises_what_is_served():
    sync = syncer("all", a=1, b=2, c=2)
    assert sync.lose("a", newest=1) == []
    assert sync.served == 2
    assert sync.lose("b", newest=1) == []
    assert sync.lose("unknown", newest=1) == []
    sync.check()


def test_losing_an_engine_that_loads_lets_the_next_begin_and_the_last_end_it():
    sync = syncer("rolling", a=0, b=0, c=0)
    assert sync.begin(1) == [Suspend(engine="a")]
    assert sync.lose("b", newest=1) == []
    assert sync.lose("a", newest=1) == [Suspend(engine="c")]
    assert (sync.lose("c", newest=1), sync.active) == ([], False)
    sync.check()


def test_an_engine_lost_before_it_caught_up_is_forgotten():
    sync = syncer("all", a=2)
    sync.join_late(late("b", 0), newest=2)
    assert sync.lose("b", newest=1) == []
    sync.check()


def test_where_all_serve_the_same_one_that_joins_with_newer_weights_waits_for_the_others():
    sync = syncer("all", is_uniform=True, a=1)
    assert sync.join_late(late("b", 2), newest=2) == []
    assert sync.join_late(late("c", 3), newest=3) == []
    sync.begin(2)
    assert sync.updated("a", 2, newest=3) == [Resume(engine="a"), Admit(engine="b")]
    sync.check()
    assert sync.lose("c", newest=3) == []
    assert sync.join_late(late("d", 3), newest=3) == []
    assert sync.lose("a", newest=3) == []
    assert sync.lose("b", newest=3) == [Admit(engine="d")]
    assert sync.served == 3
    sync.check()


def test_what_a_lost_engine_still_answers_is_not_heard():
    engines = syncer("all", a=0, b=0)
    engines.begin(1)
    engines.lose("a", newest=1)
    assert engines.suspended("a") == []
    assert engines.updated("a", 1, newest=1) == []
    assert engines.updated("b", 1, newest=1) == [Resume(engine="b")]
    assert (engines.served, engines.active) == (1, False)
    engines.check()


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
