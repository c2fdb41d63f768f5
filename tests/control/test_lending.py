from random import Random

import pytest
from driven_scheduler import Driver
from world import World

from rollart.control.lending import Lender, Lending
from rollart.control.rules import MODES, ONE_OFF, Batching, Rules, Syncing
from rollart.control.scheduler import Scheduler
from rollart.control.staleness import Staleness
from rollart.errors import ConfigError, InvariantError
from rollart.events import (
    EngineLent,
    EngineRecalled,
    EngineSuspended,
    EngineUpdated,
    Lend,
    Publish,
    Published,
    Recall,
    Resume,
    RunStarted,
    StepFinished,
    StopRequested,
    Suspend,
    Train,
    Update,
)
from rollart.types import EngineInfo

ON = Lending(enabled=True, min_idle_s=0.0)
TWO = Batching(groups_per_step=2, group_size=1)


def lender(*, groups_per_step=2, **rule):
    """Return a lender of one engine."""
    result = Lender(Lending(enabled=True, **rule), groups_per_step=groups_per_step)
    result.join([EngineInfo(id="t", pool="training", version=0, lent=True)])
    return result


def lending_run(**rules):
    """Return a run with one engine that always serves and one on training hardware."""
    return Driver(lent=("t",), **{"lending": ON, "staleness": Staleness(alpha=0)} | rules)


def of(kind, commands):
    return [command for command in commands if isinstance(command, kind)]


def test_a_wait_that_cannot_be_less_than_nothing_is_refused():
    with pytest.raises(ConfigError, match=r"lending\.min_idle_s"):
        Lending(min_idle_s=-1.0)
    with pytest.raises(ConfigError, match=r"lending\.min_switches"):
        Lending(min_switches=float("nan"))


def test_how_long_the_trainer_will_wait_is_unknown_until_a_batch_was_seen():
    known = lender()
    known.complete(0.0)
    known.complete(1.0)
    assert known.expected_idle_s(1, now=1.0) == float("inf")
    known.complete(4.0)
    assert known.expected_idle_s(1, now=4.0) == 2.0
    assert known.expected_idle_s(2, now=5.0) == 4.0


def test_a_group_that_takes_longer_than_usual_is_expected_to_take_as_long_again():
    known = lender(groups_per_step=1)
    known.complete(0.0)
    known.complete(1.0)
    assert known.expected_idle_s(1, now=4.0) == 3.0


def test_a_short_wait_is_not_worth_lending_for():
    short = lender(groups_per_step=1, min_idle_s=2.0)
    short.complete(0.0)
    short.complete(1.0)
    assert short.lend(3, missing=1, now=1.0) == []
    assert short.lend(3, missing=2, now=1.0) == [Lend(engine="t", version=3)]


def test_an_engine_is_lent_once_and_recalled_once():
    one = lender()
    assert one.recall(0.0) == []
    assert one.lend(3, missing=1, now=0.0) == [Lend(engine="t", version=3)]
    assert (one.lend(3, missing=1, now=0.0), one.recall(0.0), one.is_away) == ([], [], True)
    one.lent("t", 1.0)
    assert (one.recall(2.0), one.recall(2.0)) == ([Recall(engine="t")], [])
    assert one.is_away
    one.recalled("t", 3.0)
    assert not one.is_away


def test_a_wait_must_be_worth_what_lending_and_recalling_were_seen_to_take():
    slow = lender(groups_per_step=1, min_idle_s=1.0, min_switches=3.0)
    slow.complete(0.0)
    slow.complete(2.0)
    assert slow.worth_s == 1.0
    assert slow.lend(3, missing=1, now=2.0) == [Lend(engine="t", version=3)]
    slow.lent("t", 10.0)
    slow.recall(20.0)
    slow.recalled("t", 21.0)
    assert slow.worth_s == 3 * (8.0 + 1.0)
    assert slow.lend(3, missing=1, now=22.0) == []
    assert slow.lend(3, missing=1, now=29.0) == [Lend(engine="t", version=3)]


def test_engines_that_always_serve_and_a_rule_that_is_off_lend_nothing():
    off = Lender(Lending(), groups_per_step=1)
    off.join([EngineInfo(id="t", pool="training", version=0, lent=True)])
    serving = Lender(ON, groups_per_step=1)
    serving.join([EngineInfo(id="a", pool="gpu", version=0)])
    assert off.lend(0, missing=1, now=0.0) == serving.lend(0, missing=1, now=0.0) == []


def test_a_run_whose_engines_are_all_on_training_hardware_is_refused():
    engine = EngineInfo(id="t", pool="training", version=0, lent=True)
    with pytest.raises(InvariantError, match="needs an engine that serves"):
        Scheduler(Rules(steps=1)).handle(RunStarted(engines=(engine,), slots=1), 0.0)


def test_training_hardware_serves_until_a_batch_is_ready_and_is_recalled_before_the_step():
    run = lending_run()
    assert of(Lend, run.started) == [Lend(engine="t", version=0)]
    assert run.send(EngineLent(engine="t", version=0)) == []
    assert run.finished(0) == [Recall(engine="t")]
    assert run.scheduler.waiting_for() == "lent engines"
    assert run.send(EngineRecalled(engine="t")) == [Train(version=0, groups=((0,),), staleness=0)]
    assert run.scheduler.waiting_for() == "the optimizer"


def test_a_lend_overtaken_by_a_ready_batch_is_recalled_as_soon_as_it_is_answered():
    run = lending_run()
    assert run.finished(0) == []
    assert run.send(EngineLent(engine="t", version=0)) == [Recall(engine="t")]
    assert run.send(EngineRecalled(engine="t")) == [Train(version=0, groups=((0,),), staleness=0)]


def test_training_hardware_is_lent_again_with_the_newest_weights_when_they_are_published():
    run = lending_run(staleness=Staleness(alpha=1))
    run.finished(0)
    run.send(EngineLent(engine="t", version=0))
    run.send(EngineRecalled(engine="t"))
    assert run.send(StepFinished(version=1)) == [Publish(version=1)]
    assert run.send(Published(version=1)) == [Suspend(engine="a"), Lend(engine="t", version=1)]
    assert run.send(EngineSuspended(engine="a")) == [Update(engine="a", version=1)]
    updated = run.send(EngineUpdated(engine="a", version=1))
    assert updated[0] == Resume(engine="a")
    assert of(Suspend | Lend, updated) == []


def test_weights_no_engine_would_serve_before_the_next_batch_are_not_awaited():
    rules = {"staleness": Staleness(alpha=1), "syncing": Syncing(when="batch"), "steps": 4}
    run = lending_run(slots=2, **rules)
    run.finished(0)
    run.send(EngineLent(engine="t", version=0))
    run.send(EngineRecalled(engine="t"))
    assert of(Lend, run.send(StepFinished(version=1))) == [Lend(engine="t", version=0)]
    run.send(EngineLent(engine="t", version=0))
    assert run.send(Published(version=1)) == []
    assert run.finished(1) == [Recall(engine="t")]
    train = Train(version=1, groups=((1,),), staleness=1)
    assert run.send(EngineRecalled(engine="t")) == [train, Suspend(engine="a")]


def test_where_weights_change_only_in_idle_engines_training_hardware_serves_what_all_serve():
    run = lending_run(mode=ONE_OFF)
    run.send(EngineLent(engine="t", version=0))
    run.finished(0)
    run.send(EngineRecalled(engine="t"))
    run.send(StepFinished(version=1))
    assert run.send(Published(version=1)) == [Lend(engine="t", version=0)]
    run.send(EngineLent(engine="t", version=0))
    assert run.finished(1) == [Recall(engine="t")]
    train = Train(version=1, groups=((1,),), staleness=1)
    assert run.send(EngineRecalled(engine="t")) == [train, Suspend(engine="a")]


def test_a_run_that_ends_takes_its_training_hardware_back():
    run = lending_run()
    run.send(EngineLent(engine="t", version=0))
    assert of(Recall, run.send(StopRequested())) == [Recall(engine="t")]
    run.cancelled(0)
    assert not run.scheduler.done
    assert run.send(EngineRecalled(engine="t")) == []
    assert run.scheduler.done


@pytest.mark.parametrize("mode", MODES.values(), ids=str)
def test_every_mode_lends_before_every_step(mode):
    rules = Rules(steps=4, mode=mode, batching=TWO, lending=ON, staleness=Staleness(alpha=1))
    world = World(rules=rules, random=Random(1), lent=2).run()
    commands = [command for _, _, commands in world.log for command in commands]
    assert len(world.trained) == 4
    assert len(of(Lend, commands)) == len(of(Recall, commands)) >= 2


def test_what_a_lost_engine_still_answers_is_not_heard():
    engines = lender()
    engines.lend(0, missing=1, now=0.0)
    engines.lose("t")
    engines.lent("t", 1.0)
    engines.recalled("t", 2.0)
    assert (engines.is_away, engines.worth_s) == (False, 2.0)
