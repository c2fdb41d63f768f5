"""Random event orders: whatever the order, the invariants hold and the run ends."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from world import World

from rollart.control.batching import Batching
from rollart.control.filters import Filter
from rollart.control.modes import MODES
from rollart.control.redundancy import Redundancy
from rollart.control.retry import Retry
from rollart.control.rules import Rules
from rollart.control.scheduler import Scheduler
from rollart.control.staleness import Staleness
from rollart.control.syncing import Syncing

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
        Staleness,
        alpha=st.integers(0, 3),
        counting=st.sampled_from(["optimizer", "serving"]),
        at_bound=st.sampled_from(["drop", "wait", "pace"]),
        patience_s=st.sampled_from([0.0, 2.0]),
    ),
    redundancy=st.builds(
        Redundancy, extra_groups=st.integers(0, 2), extra_members=st.integers(0, 2)
    ),
    retry=st.builds(Retry, max_attempts=st.integers(1, 3), give_up_after=st.just(10_000)),
    filter=st.builds(Filter, drop_zero_variance=st.booleans(), refill_limit=st.integers(0, 5)),
    syncing=st.builds(Syncing, order=st.sampled_from(["all", "rolling"])),
)
worlds = st.fixed_dictionaries(
    {
        "rules": rules,
        "slots": st.integers(1, 12),
        "engines": st.integers(1, 3),
        "failure_rate": st.sampled_from([0.0, 0.1, 0.4]),
        "score_failure_rate": st.sampled_from([0.0, 0.3]),
        "scored_by_env": st.sampled_from([0.0, 0.5, 1.0]),
    }
)


@settings(max_examples=300, deadline=None)
@given(worlds, st.integers(0, 10_000))
def test_every_run_ends_with_every_attempt_ended_once_and_nothing_too_old(options, seed):
    world = World(random=Random(seed), **options).run()
    rules = options["rules"]
    assert len(world.trained) == rules.steps
    assert {len(ends) for ends in world.ends.values()} <= {1}
    alpha = world.scheduler.bound.alpha
    allowed = alpha + (1 if world.scheduler.bound.counting == "serving" else 0)
    for train in world.trained:
        ages = [train.version - world.born[id_] for group in train.groups for id_ in group]
        assert max(ages) <= train.staleness
        if rules.mode.bound == "always":
            assert train.staleness <= allowed


@settings(max_examples=50, deadline=None)
@given(worlds, st.integers(0, 10_000))
def test_the_same_events_give_the_same_commands(options, seed):
    world = World(random=Random(seed), **options).run()
    again = Scheduler(options["rules"])
    for now, event, commands in world.log:
        assert again.handle(event, now) == commands
