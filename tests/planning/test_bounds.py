from dataclasses import replace
from math import inf

import pytest
from planning_samples import H20, H800, NOWHERE_SPECIAL, make_plan, make_problem, make_rules

from rollart.control.batching import Batching
from rollart.control.staleness import Staleness
from rollart.planning.bounds import Bounds
from rollart.planning.plan import SPLITS, Share
from rollart.planning.trials import Bench
from rollart.planning.worlds import Scale
from rollart.sim.costs import TrainCosts

SCALE = Scale(attempts=32, steps=6, skip=2)
PLANS = {
    "usual": make_plan(),
    "anywhere": make_plan(serves=NOWHERE_SPECIAL),
    "few environments": make_plan(slots=12),
    "little rollout": make_plan(train_gpus=16, rollout=(Share(pool=H800, gpus=8, tp=4),),
                                serves={"reader": "h800", "writer": "h800"}),
    "apart": make_plan(rollout=(Share(pool=H800, gpus=16, tp=2, prefill=1, decode=1),
                                Share(pool=H20, gpus=16, tp=1))),
    "redundant": make_plan(extra_groups=2, slots=72),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("mode", ["rollart", "sync_plus"])
def test_no_simulated_step_is_shorter_than_its_bound(name, mode):
    alpha = 1 if mode == "rollart" else 0
    problem = make_problem(rules=make_rules(mode))
    bounds = Bounds(problem)
    bench = Bench(bounds, events=0)
    trial = bench.trial(replace(PLANS[name], alpha=alpha))
    assert trial.bound.step_s <= bench.run(trial, SCALE).step_s * (1 + 1e-9)
    assert bounds.estimate_s(trial.plan, trial.bound) >= trial.bound.step_s


@pytest.mark.parametrize("window", ["served", "ahead"])
@pytest.mark.parametrize(("alpha", "extra_groups"), [(1, 0), (1, 1), (1, 3), (2, 1)])
def test_the_window_holds_with_redundant_groups_too(window, alpha, extra_groups):
    rules = replace(make_rules(), staleness=Staleness(alpha=alpha, window=window))
    problem = make_problem(rules=rules)
    slots = problem.most_attempts(alpha=alpha, extra_groups=extra_groups)
    plan = make_plan(alpha=alpha, extra_groups=extra_groups, slots=slots)
    bench = Bench(Bounds(problem), events=0)
    trial = bench.trial(plan)
    scales = [replace(SCALE, steps=10, seed=seed) for seed in range(3)]
    assert trial.bound.step_s <= bench.run(trial, *scales).step_s * (1 + 1e-9)


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
