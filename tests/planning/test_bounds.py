from dataclasses import replace
from math import inf

import pytest
from planning_samples import (
    H20,
    H800,
    NOWHERE_SPECIAL,
    READER,
    WRITER,
    make_plan,
    make_problem,
    make_rules,
)

from rollart.config.simulation import Constants
from rollart.control.lending import Lending
from rollart.control.rules import Batching, Redundancy
from rollart.control.staleness import Staleness
from rollart.planning.bounds import Bounds
from rollart.planning.plan import SPLITS, Plan, PoolShare
from rollart.planning.trials import Scale, TrialRunner
from rollart.sim.costs import TrainCosts
from rollart.sim.workload import Latency

SCALE = Scale(attempts=32, steps=6, skip=2)
PLANS = {
    "usual": make_plan(),
    "anywhere": make_plan(serves=NOWHERE_SPECIAL),
    "few environments": make_plan(slots=12),
    "little rollout": make_plan(train_gpus=16, rollout=(PoolShare(pool=H800, gpus=8, tp=4),),
                                serves={"reader": "h800", "writer": "h800"}),
    "apart": make_plan(rollout=(PoolShare(pool=H800, gpus=16, tp=2, prefill=1, decode=1),
                                PoolShare(pool=H20, gpus=16, tp=1))),
    "redundant": make_plan(extra_groups=2, slots=72),
}  # fmt: skip


LITTLE = Constants(train_fixed_s=0.1, train_utilisation=0.9)
"""Training so quick that it hides no other part."""
NOISE = 1.05
"""What a search allows for: the mean batch is drawn, and so are the ones simulated."""


def parts_over_step(runner: TrialRunner, plan: Plan, *scales: Scale) -> dict[str, float]:
    """Return the parts of a plan's bound, each over its simulated step."""
    trial = runner.trial(plan)
    step_s = runner.run(trial, *scales).step_s
    return {name: part_s / step_s for name, part_s in trial.bound.parts.items()}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("mode", ["rollart", "sync_plus"])
@pytest.mark.parametrize("constants", [Constants(), LITTLE])
def test_no_simulated_step_is_shorter_than_any_part_of_its_bound(name, mode, constants):
    alpha = 1 if mode == "rollart" else 0
    # A step that waits may find more work done than a mean batch has, in a run as short as this.
    rules = replace(make_rules(mode), staleness=Staleness(at_bound="drop"))
    problem = make_problem(rules=rules, constants=constants)
    bounds = Bounds(problem)
    plan = replace(PLANS[name], alpha=alpha)
    over = parts_over_step(TrialRunner(bounds, events=0), plan, SCALE)
    assert max(over.values()) <= 1 + 1e-9, over
    bound = bounds.of(plan)
    assert bounds.estimate_s(plan, bound) >= bound.step_s


NARROW = make_plan(
    train_gpus=16,
    rollout=(PoolShare(pool=H800, gpus=1, tp=1),),
    serves={"reader": "h800", "writer": "h800"},
    alpha=4,
    slots=64,
)
"""One engine for all attempts."""


@pytest.mark.parametrize(
    ("part", "plan"),
    [("generation", NARROW), ("slots", make_plan(slots=4, alpha=4)), ("window", make_plan())],
)
def test_each_part_is_the_tightest_somewhere_and_close_to_the_step(part, plan):
    rules = make_rules(alpha=plan.alpha)
    runner = TrialRunner(Bounds(make_problem(rules=rules, constants=LITTLE)), events=0)
    over = parts_over_step(runner, plan, replace(SCALE, steps=12, skip=4))
    assert max(over, key=over.__getitem__) == part
    assert 0.5 < over[part] < NOISE


TAILED = replace(READER, reset=Latency(kind="lognormal", mean_s=60, spread=1.5))
LONG = replace(WRITER, samples=20_000, samples_spread=0.0, max_tokens=32_768)
NEAR = (replace(H800, link="nvlink"), replace(H20, link="nvlink", count=1))
ALONE = make_plan(serves={"reader": "h800"})
LENT = make_plan(
    train=NEAR[0],
    train_gpus=24,
    rollout=(PoolShare(pool=NEAR[1], gpus=1, tp=1),),
    serves={"writer": "h20"},
)
QUICK_TO_LEND = replace(LITTLE, switch_s=0.0, install_gb_s=1e3)
BEYOND = {
    "extra members": (ALONE, {"redundancy": Redundancy(extra_members=4)}, {"tasks": (TAILED,)}),
    "hedging": (ALONE, {"redundancy": Redundancy(hedge_after=1.0)}, {"tasks": (TAILED,)}),
    "adaptive": (make_plan(), {"redundancy": Redundancy(adaptive=True, max_extra_groups=8)}, {}),
    "lending": (
        LENT,
        {"lending": Lending(enabled=True, min_idle_s=0.0, min_switches=0.0)},
        {"tasks": (LONG,), "pools": NEAR, "constants": QUICK_TO_LEND},
    ),
}


@pytest.mark.parametrize("name", BEYOND)
def test_bounds_hold_where_groups_keep_their_first_or_training_gpus_serve(name):
    plan, changes, more = BEYOND[name]
    rules = replace(make_rules(alpha=plan.alpha), **changes)
    bounds = Bounds(make_problem(rules=rules, **{"constants": LITTLE, **more}))
    over = parts_over_step(TrialRunner(bounds, events=0), plan, replace(SCALE, steps=12, skip=4))
    assert max(over.values()) < NOISE, over
    own_s = bounds.of(plan).step_s
    relaxed, assignment = bounds.relax(plan, keep=4)
    assert max(relaxed.step_s, bounds.least_s(plan, enough_s=inf)) <= own_s * (1 + 1e-9)
    homes = {home for table in assignment.tables for home in table.values()}
    assert homes <= {share.pool.name for share in plan.rollout}


@pytest.mark.parametrize("window", ["served", "ahead"])
@pytest.mark.parametrize(("alpha", "extra_groups"), [(1, 0), (1, 1), (1, 3), (2, 1)])
def test_the_window_holds_with_redundant_groups_too(window, alpha, extra_groups):
    rules = replace(make_rules(), staleness=Staleness(alpha=alpha, window=window))
    problem = make_problem(rules=rules)
    slots = problem.most_attempts(alpha=alpha, extra_groups=extra_groups)
    plan = make_plan(alpha=alpha, extra_groups=extra_groups, slots=slots)
    runner = TrialRunner(Bounds(problem), events=0)
    trial = runner.trial(plan)
    scales = [replace(SCALE, steps=10, seed=seed) for seed in range(3)]
    assert trial.bound.step_s <= runner.run(trial, *scales).step_s * (1 + 1e-9)


def test_redundant_groups_let_the_slowest_be_left_behind():
    rules = replace(make_rules(), batching=Batching(groups_per_step=64, group_size=4))
    bounds = Bounds(make_problem(rules=rules))
    parts = [bounds.of(make_plan(extra_groups=extra)).window_s for extra in (0, 4, 16)]
    assert parts == sorted(parts, reverse=True)
    assert parts[2] > 0


def test_the_training_part_is_the_arithmetic_of_a_mean_batch():
    bounds = Bounds(make_problem())
    costs = TrainCosts(model=bounds.problem.model, gpu=H800.gpu, gpus=8)
    bound = bounds.of(make_plan())
    assert bound.training_s == costs.step_s(bounds.batch_tokens)
    assert bound.parts.keys() == {"training", "generation", "window", "slots"}
    assert bound.parts[bound.tightest] == bound.step_s


def test_an_open_table_is_bounded_by_the_best_table():
    bounds = Bounds(make_problem())
    relaxed, assignment = bounds.relax(make_plan(serves=NOWHERE_SPECIAL), keep=4)
    for table in assignment.tables:
        bound = bounds.of(make_plan(serves=table))
        assert relaxed.generation_s <= bound.generation_s * (1 + 1e-9)
        assert relaxed.window_s <= bound.window_s


def test_fewer_environments_raise_their_part_alone():
    bounds = Bounds(make_problem())
    many, few = bounds.of(make_plan(slots=64)), bounds.of(make_plan(slots=16))
    assert few.slots_s == 4 * many.slots_s
    assert (few.training_s, few.window_s) == (many.training_s, many.window_s)


def test_a_larger_alpha_widens_the_window():
    bounds = Bounds(make_problem())
    parts = [bounds.of(make_plan(alpha=alpha)).window_s for alpha in (1, 2, 3)]
    assert parts == sorted(parts, reverse=True)


def test_lives_are_the_shortest_of_each_group_and_not_of_one_pool():
    bounds = Bounds(make_problem())
    both = bounds.of(make_plan(serves=NOWHERE_SPECIAL))
    for pool in ("h800", "h20"):
        one = bounds.of(make_plan(serves={"reader": pool, "writer": pool}))
        assert both.window_s <= one.window_s


def test_the_least_bound_of_a_share_holds_for_every_split_of_it():
    bounds = Bounds(make_problem())
    plan = make_plan(serves=NOWHERE_SPECIAL)
    least_s = bounds.least_s(plan, enough_s=inf)
    for prefill, decode in SPLITS:
        apart = tuple(replace(s, prefill=prefill, decode=decode) for s in plan.rollout)
        bound, _ = bounds.relax(replace(plan, rollout=apart), keep=1)
        assert least_s <= bound.step_s * (1 + 1e-9)
        options = bounds.options(apart, slots=4)
        joined = bounds.options(plan.rollout, slots=4, any_split=True)
        for task, pools in joined.items():
            for pool, loads in pools.items():
                assert loads[pool] <= max(options[task][pool].values()) * (1 + 1e-9)


def test_what_is_already_enough_is_not_bounded_further():
    bounds = Bounds(make_problem())
    parts = bounds.of(make_plan()).parts
    beside_s = max(part for name, part in parts.items() if name != "generation")
    assert bounds.least_s(make_plan(), enough_s=0.0) == beside_s


def test_keeping_prefixes_spares_reading():
    plan = make_plan(serves={"reader": "h20", "writer": "h800"})
    kept = Bounds(make_problem()).of(plan)
    dropped = Bounds(make_problem(reuse_prefixes=False)).of(plan)
    assert dropped.slots_s > kept.slots_s
    assert dropped.generation_s >= kept.generation_s
