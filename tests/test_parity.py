"""The live controller and the simulator, given the same durations, issue the same commands."""

from random import Random

import pytest
from parity_parts import Case, live, simulated

from rollart.control.lending import Lending
from rollart.control.routing import Routing
from rollart.control.rules import (
    MODES,
    Batching,
    Dispatch,
    Filter,
    Redundancy,
    Retry,
    Rules,
    Syncing,
)
from rollart.control.staleness import Staleness
from rollart.events import Adapt, Cancel, Drop, Launch, Lend, Score, Train, Wake

BATCHING = Batching(groups_per_step=3, group_size=3)


def make_rules(mode: str, **changes) -> Rules:
    return Rules(**{"steps": 5, "mode": MODES[mode], "batching": BATCHING, **changes})


def assert_same(case: Case) -> list[type]:
    """Make a run twice; return the kinds of its commands."""
    simulation, reality = simulated(case), live(case)
    for number, (expected, actual) in enumerate(zip(reality, simulation, strict=False)):
        assert actual == expected, f"entry {number}"
    assert len(simulation) == len(reality)
    return [type(command) for _, _, commands in reality for command in commands]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", MODES)
def test_a_plain_run_is_the_same(mode, seed):
    issued = assert_same(Case(rules=make_rules(mode), seed=seed))
    assert issued.count(Train) == 5


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", MODES)
def test_environments_that_fail_are_retried_the_same(mode, seed):
    rules = make_rules(mode, retry=Retry(backoff_s=2.0, spares=seed != 1))
    case = Case(rules=rules, seed=seed, failure_rate=0.3)
    assert Wake in assert_same(case) or seed != 1


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", MODES)
def test_redundancy_and_hedging_cancel_the_same(mode, seed):
    redundancy = Redundancy(extra_groups=1, extra_members=1, hedge_after=2.0)
    rules = make_rules(mode, redundancy=redundancy)
    case = Case(rules=rules, seed=seed, slots=14, failure_rate=0.1)
    assert Cancel in assert_same(case)


@pytest.mark.parametrize("mode", MODES)
def test_rewards_scored_apart_arrive_the_same(mode):
    rules = make_rules(mode, filter=Filter(drop_zero_variance=True))
    issued = assert_same(Case(rules=rules, is_scored=True, failure_rate=0.1))
    assert {Score, Drop} <= set(issued)


@pytest.mark.parametrize("order", ["all", "rolling"])
@pytest.mark.parametrize("mode", MODES)
def test_several_engines_are_synced_the_same(mode, order):
    rules = make_rules(mode, syncing=Syncing(order=order))
    routing = Routing(affinity={"games": ("b", "a"), "default": ("a",)}, sticky=order == "all")
    assert_same(Case(rules=rules, engines=("a", "a", "b"), routing=routing, slots=12))


@pytest.mark.parametrize("at_bound", ["finish", "drop", "wait", "pace"])
@pytest.mark.parametrize("counting", ["optimizer", "serving"])
@pytest.mark.parametrize("seed", range(2))
def test_the_staleness_bound_is_held_the_same(at_bound, counting, seed):
    staleness = Staleness(alpha=1, at_bound=at_bound, counting=counting, patience_s=1.5)
    rules = make_rules("rollart", staleness=staleness, steps=10)
    assert_same(Case(rules=rules, slots=30, seed=seed))


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("mode", MODES)
def test_slots_fewer_than_wanted_are_used_the_same(mode, slots):
    assert_same(Case(rules=make_rules(mode, steps=3), slots=slots, failure_rate=0.2))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", MODES)
def test_idle_training_hardware_is_lent_the_same(mode, seed):
    rules = make_rules(mode, lending=Lending(enabled=True, min_idle_s=0.5))
    routing = Routing(learn=seed == 2)
    case = Case(rules=rules, engines=("a", "b"), lent=2, seed=seed, routing=routing)
    assert Lend in assert_same(case)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("mode", MODES)
def test_learned_routes_and_longest_first_are_the_same(mode, seed):
    rules = make_rules(mode, dispatch=Dispatch(order="longest"), steps=12)
    routing = Routing(learn=True)
    assert_same(Case(rules=rules, engines=("a", "b", "b"), routing=routing, seed=seed))


@pytest.mark.parametrize("mode", ["areal", "rollart"])
def test_levels_that_adapt_move_the_same(mode):
    rules = make_rules(
        mode,
        steps=40,
        staleness=Staleness(alpha=3, adaptive=True),
        redundancy=Redundancy(adaptive=True, max_extra_groups=3),
    )
    assert Adapt in assert_same(Case(rules=rules, slots=30))


def draw_case(mode: str, seed: int) -> Case:
    """Draw everything a run may differ in."""
    random = Random(seed)
    pick = random.choice
    engines = tuple(pick("ab") for _ in range(random.randint(1, 4)))
    lends, alpha = pick([False, True]), random.randint(0, 3)
    rules = make_rules(
        mode,
        steps=random.randint(2, 9),
        seed=seed,
        batching=Batching(
            groups_per_step=random.randint(1, 4),
            group_size=random.randint(1, 4),
            min_members=1,
            order=pick(["oldest", "finished"]),
        ),
        staleness=Staleness(
            alpha=alpha,
            at_bound=pick(["finish", "drop", "wait", "pace"]),
            counting=pick(["optimizer", "serving"]),
            patience_s=random.uniform(0, 5),
            window=pick(["served", "ahead"]) if alpha else "served",
            adaptive=pick([False, True]),
        ),
        redundancy=Redundancy(
            extra_groups=random.randint(0, 2),
            extra_members=random.randint(0, 2),
            choice=pick(["launched", "finished"]),
            hedge_after=pick([0.0, random.uniform(1, 3)]),
            adaptive=pick([False, True]),
        ),
        retry=Retry(
            max_attempts=random.randint(1, 4),
            backoff_s=random.uniform(0, 9),
            spares=pick([False, True]),
            give_up_after=10_000,
        ),
        filter=Filter(drop_zero_variance=pick([False, True]), refill_limit=random.randint(0, 5)),
        syncing=Syncing(order=pick(["all", "rolling"]), when=pick(["published", "batch"])),
        dispatch=Dispatch(
            order=pick(["arrival", "longest"]), lookahead_groups=random.randint(0, 5)
        ),
        lending=Lending(enabled=lends, min_idle_s=random.uniform(0, 2)),
    )
    return Case(
        rules=rules,
        slots=random.randint(1, 40),
        engines=engines,
        lent=random.randint(1, 2) if lends else 0,
        routing=Routing(
            affinity=pick([{}, {"games": ("a",), "default": ("b", "a")}]),
            sticky=pick([False, True]),
            learn=pick([False, True]),
        ),
        is_scored=pick([False, True]),
        failure_rate=pick([0.0, random.uniform(0, 0.4)]),
        seed=seed,
    )


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("mode", MODES)
def test_runs_drawn_at_random_are_the_same(mode, seed):
    assert Launch in assert_same(draw_case(mode, seed))
