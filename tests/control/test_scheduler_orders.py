"""Random event orders: whatever the order, the invariants hold and the run ends."""

import itertools
import json
from dataclasses import replace
from random import Random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from world import World

from rollart.control.lending import Lending
from rollart.control.rules import (
    AREAL,
    MODES,
    ONE_OFF,
    ROLLART,
    SYNC,
    SYNC_PLUS,
    Batching,
    Filter,
    Redundancy,
    Retry,
    Rules,
    Syncing,
)
from rollart.control.scheduler import Scheduler
from rollart.control.snapshot import buffered, restore, take_snapshot
from rollart.control.staleness import Staleness
from rollart.events import Drop, StopRequested

ITERATIONS = (SYNC, SYNC_PLUS, ONE_OFF)
QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)

rules = st.builds(
    Rules,
    steps=st.integers(1, 6),
    seed=st.integers(0, 3),
    mode=st.sampled_from(list(MODES.values())),
    batching=st.builds(
        Batching,
        groups_per_step=st.integers(1, 4),
        group_size=st.integers(1, 4),
        order=st.sampled_from(["oldest", "finished"]),
    ),
    staleness=st.builds(
        lambda alpha, window, late, **rest: Staleness(
            alpha=alpha,
            window=window if alpha else "served",
            max_age=alpha + late if late else 0,
            **rest,
        ),
        alpha=st.integers(0, 3),
        window=st.sampled_from(["served", "ahead"]),
        adaptive=st.booleans(),
        counting=st.sampled_from(["optimizer", "serving"]),
        at_bound=st.sampled_from(["finish", "drop", "wait", "pace"]),
        late=st.integers(0, 2),
        patience_s=st.sampled_from([0.0, 2.0]),
    ),
    redundancy=st.builds(
        Redundancy,
        extra_groups=st.integers(0, 2),
        extra_members=st.integers(0, 2),
        choice=st.sampled_from(["launched", "finished"]),
        adaptive=st.booleans(),
        hedge_after=st.sampled_from([0.0, 1.0, 2.0]),
    ),
    retry=st.builds(
        Retry,
        max_attempts=st.integers(1, 3),
        spares=st.booleans(),
        give_up_after=st.just(10_000),
    ),
    filter=st.builds(Filter, drop_zero_variance=st.booleans(), refill_limit=st.integers(0, 5)),
    syncing=st.builds(
        Syncing,
        order=st.sampled_from(["all", "rolling"]),
        when=st.sampled_from(["published", "batch"]),
    ),
    lending=st.builds(Lending, enabled=st.booleans(), min_idle_s=st.sampled_from([0.0, 2.0])),
)
worlds = st.fixed_dictionaries(
    {
        "rules": rules,
        "slots": st.integers(1, 12),
        "engines": st.integers(1, 3),
        "lent": st.integers(0, 2),
        "failure_rate": st.sampled_from([0.0, 0.1, 0.4]),
        "score_failure_rate": st.sampled_from([0.0, 0.3]),
        "scored_by_env": st.sampled_from([0.0, 0.5, 1.0]),
        "compared": st.sampled_from([0.0, 0.5, 1.0]),
    }
)
seeds = st.integers(0, 10_000)


def with_rules(options, **changes):
    """Return the options with some rules replaced."""
    return options | {"rules": replace(options["rules"], **changes)}


def assert_nothing_trained_is_too_old(world):
    rules, bound = world.rules, world.scheduler.bound
    allowed = bound.oldest + (1 if bound.counting == "serving" else 0)
    for train in world.trained:
        ages = [train.version - world.born[id_] for group in train.groups for id_ in group]
        assert max(ages) <= train.staleness
        if rules.mode.bound == "always":
            assert train.staleness <= allowed


def reasons(world):
    """Return why finished work was dropped, in order."""
    return [c.reason for _, _, commands in world.log for c in commands if isinstance(c, Drop)]


@settings(QUICK, max_examples=100)
@given(worlds, seeds)
def test_every_run_ends_with_every_attempt_ended_once_and_nothing_too_old(options, seed):
    world = World(random=Random(seed), **options).run()
    assert [train.version for train in world.trained] == list(range(options["rules"].steps))
    assert {len(ends) for ends in world.ends.values()} == {1}
    assert_nothing_trained_is_too_old(world)


@settings(QUICK, max_examples=100)
@given(worlds, seeds, st.sampled_from([0.01, 0.05, 0.2]))
def test_engines_that_come_and_go_lose_nothing_and_let_nothing_grow_too_old(options, seed, rate):
    world = World(random=Random(seed), loss_rate=rate, **options).run()
    assert [train.version for train in world.trained] == list(range(options["rules"].steps))
    assert {len(ends) for ends in world.ends.values()} == {1}
    assert_nothing_trained_is_too_old(world)


@QUICK
@given(worlds, seeds, st.sampled_from([0.0, 0.05]))
def test_the_same_events_give_the_same_commands(options, seed, loss_rate):
    world = World(random=Random(seed), loss_rate=loss_rate, **options).run()
    again = Scheduler(options["rules"])
    for now, event, commands in world.log:
        assert again.handle(event, now) == commands


@QUICK
@given(worlds, seeds, st.integers(1, 5))
def test_environments_hung_until_they_time_out_do_not_stop_a_run(options, seed, hung):
    slots = 2 * hung + options["slots"]
    options = options | {"slots": slots, "hung": frozenset(range(0, 2 * hung, 2))}
    world = World(random=Random(seed), **options).run()
    assert len(world.trained) == options["rules"].steps
    assert {len(ends) for ends in world.ends.values()} == {1}


@QUICK
@given(
    worlds,
    seeds,
    st.integers(1, 4),
    st.sampled_from([AREAL, ROLLART]),
    st.sampled_from(["drop", "pace"]),
)
def test_environments_hung_for_ever_are_not_awaited_when_others_can_fill_the_batch(
    options, seed, hung, mode, at_bound
):
    rules = options["rules"]
    options = with_rules(
        options,
        mode=mode,
        staleness=replace(rules.staleness, at_bound=at_bound),
        redundancy=replace(rules.redundancy, extra_groups=hung, adaptive=False, choice="finished"),
    )
    options |= {"slots": hung + options["slots"], "hung": frozenset(range(hung))}
    world = World(random=Random(seed), has_timeouts=False, **options)
    assert len(world.run().trained) == rules.steps


@QUICK
@given(worlds, seeds, st.integers(0, 3), st.sampled_from(["wait", "finish"]), st.integers(0, 2))
def test_a_run_that_waits_at_the_bound_never_loses_work_to_age(
    options, seed, alpha, at_bound, late
):
    rules = options["rules"]
    staleness = Staleness(
        alpha=alpha, at_bound=at_bound, max_age=alpha + late if late else 0, patience_s=2.0
    )
    most = (staleness.oldest - alpha) * rules.batching.groups_per_step
    options = with_rules(
        options,
        batching=replace(rules.batching, order="oldest"),
        staleness=staleness,
        redundancy=replace(
            rules.redundancy,
            extra_groups=min(most, rules.redundancy.extra_groups),
            choice="launched",
            adaptive=False,
        ),
    )
    world = World(random=Random(seed), **options).run()
    assert "stale" not in reasons(world)
    assert not any("stale" in ends for ends in world.ends.values())


@QUICK
@given(worlds, seeds)
def test_what_is_trained_does_not_depend_on_what_finishes_first(options, seed):
    """Nothing fails, so surplus work has nothing to stand in for."""
    rules = options["rules"]
    options = with_rules(
        options,
        redundancy=replace(rules.redundancy, choice="launched", adaptive=False),
        filter=Filter(),
    )
    options |= {"failure_rate": 0.0, "score_failure_rate": 0.0}
    world = World(random=Random(seed), **options).run()
    size, per_step = rules.batching.group_size, rules.batching.groups_per_step
    for train in world.trained:
        for group in train.groups:
            assert [drawn(world.launched[id_])[1] for id_ in group] == list(range(size))
        if rules.mode in ITERATIONS:
            groups = [world.launched[group[0]].group for group in train.groups]
            assert groups == list(range(groups[0], groups[0] + per_step))


def drawn(launch):
    """Return the group and the member whose draws an attempt plays."""
    return launch.group, launch.member if launch.doubles is None else launch.doubles


@QUICK
@given(worlds, seeds, st.sampled_from(["launched", "finished"]))
def test_no_draw_is_trained_twice_and_a_double_has_the_seed_of_what_it_doubles(
    options, seed, choice
):
    rules = options["rules"]
    redundancy = replace(rules.redundancy, hedge_after=1.0, choice=choice)
    world = World(random=Random(seed), **with_rules(options, redundancy=redundancy)).run()
    trained = [drawn(world.launched[i]) for t in world.trained for g in t.groups for i in g]
    assert len(trained) == len(set(trained))
    seeds = {}
    for launch in world.launched.values():
        assert seeds.setdefault(drawn(launch), launch.seed) == launch.seed


@QUICK
@given(worlds, seeds, st.sampled_from(ITERATIONS))
def test_a_batch_holds_the_groups_of_one_iteration(options, seed, mode):
    world = World(random=Random(seed), **with_rules(options, mode=mode)).run()
    trained = [
        [world.launched[group[0]].group for group in train.groups] for train in world.trained
    ]
    assert trained == [sorted(batch) for batch in trained]
    assert max(train.staleness for train in world.trained) <= mode.alpha
    for batch, following in itertools.pairwise(trained):
        assert batch[-1] < following[0]


@QUICK
@given(worlds, seeds, st.sampled_from(ITERATIONS))
def test_no_attempt_sees_weights_change_where_engines_change_them_idle(options, seed, mode):
    world = World(random=Random(seed), **with_rules(options, mode=mode)).run()
    assert world.disturbed == set()
    assert not any("stale" in ends for ends in world.ends.values())


@QUICK
@given(worlds, seeds, st.sampled_from([SYNC, SYNC_PLUS]))
def test_synchronous_modes_train_on_policy(options, seed, mode):
    world = World(random=Random(seed), **with_rules(options, mode=mode)).run()
    assert [train.staleness for train in world.trained] == [0] * options["rules"].steps


def resume(first, record, options, seed):
    """Return a world that goes on from a snapshot, with the buffer it counts on."""
    kept = buffered(record)
    return World(
        random=Random(seed + 1),
        scheduler=restore(options["rules"], record),
        ends={id_: [] for id_ in kept},
        born={id_: first.born[id_] for id_ in kept},
        launched={id_: first.launched[id_] for id_ in kept},
        **options,
    )


def assert_two_halves_make_one_run(first, second, steps):
    done = second.rules.steps - len(second.trained)
    halves = [*first.trained[:done], *second.trained]
    assert [train.version for train in halves] == list(range(steps))
    ids = [id_ for train in halves for group in train.groups for id_ in group]
    assert len(ids) == len(set(ids))
    launches = first.launched | second.launched
    groups = [launches[group[0]].group for train in halves for group in train.groups]
    assert len(groups) == len(set(groups))
    assert {len(ends) for ends in second.ends.values()} <= {1}
    assert_nothing_trained_is_too_old(second)


@settings(QUICK, max_examples=120)
@given(worlds, seeds, st.integers(0, 300))
def test_a_snapshot_between_any_two_events_makes_the_same_run_whole(options, seed, events):
    first = World(random=Random(seed), **options).play(events)
    record = json.loads(json.dumps(take_snapshot(first.scheduler)))
    second = resume(first, record, options, seed).run()
    assert_two_halves_make_one_run(first, second, options["rules"].steps)


@settings(QUICK, max_examples=120)
@given(worlds, seeds, st.integers(0, 300))
def test_an_interrupted_run_keeps_what_it_resumes_from_and_ends_the_rest(options, seed, events):
    first = World(random=Random(seed), **options).play(events)
    first.send(StopRequested())
    first.run()
    record = json.loads(json.dumps(take_snapshot(first.scheduler)))
    kept = set(buffered(record))
    assert {id_ for id_, ends in first.ends.items() if not ends} == kept
    assert {len(ends) for id_, ends in first.ends.items() if id_ not in kept} <= {1}
    second = resume(first, record, options, seed).run()
    assert_two_halves_make_one_run(first, second, options["rules"].steps)


@settings(QUICK, max_examples=100)
@given(worlds, seeds, st.integers(0, 300), rules)
def test_a_run_goes_on_in_another_mode_with_another_batch(options, seed, events, others):
    first = World(random=Random(seed), **options).play(events)
    record = json.loads(json.dumps(take_snapshot(first.scheduler)))
    changed = replace(others, steps=options["rules"].steps)
    second = resume(first, record, options | {"rules": changed}, seed).run()
    assert_two_halves_make_one_run(first, second, changed.steps)


def test_work_left_over_by_larger_batches_does_not_keep_old_weights_in_use():
    """More groups are taken over than a batch now holds: a step makes the others too old."""
    before = Rules(
        steps=4,
        mode=SYNC_PLUS,
        batching=Batching(groups_per_step=4, group_size=2),
        redundancy=Redundancy(extra_groups=2, extra_members=2),
    )
    after = replace(before, mode=SYNC, batching=Batching(groups_per_step=1, group_size=4))
    options = {"rules": before, "slots": 11, "failure_rate": 0.1, "scored_by_env": 0.0}
    for seed in range(40):
        first = World(random=Random(seed), **options).play(120)
        record = json.loads(json.dumps(take_snapshot(first.scheduler)))
        second = resume(first, record, options | {"rules": after}, seed).run(5000)
        assert_two_halves_make_one_run(first, second, after.steps)
