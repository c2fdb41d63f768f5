"""The guess that orders plans: never below its floor, and moved by what moves a step."""

from dataclasses import replace
from math import inf

import pytest
from planning_samples import H20, H800, NOWHERE_SPECIAL, make_plan, make_problem

from rollart.planning.assignment import EngineSlowdown, estimate_s
from rollart.planning.bounds import Bounds
from rollart.planning.plan import Plan, PoolShare
from rollart.planning.trials import Scale, TrialRunner

BOUNDS = Bounds(make_problem())


def estimate(plan: Plan, *, served_s: float = 0.0, floor_s: float = 1.0) -> float:
    problem = BOUNDS.problem
    return estimate_s(problem, plan, demands=BOUNDS.demands, served_s=served_s, floor_s=floor_s)


def test_an_attempt_among_others_takes_waiting_reading_and_sampling():
    demand = BOUNDS.demands[0]
    costs = BOUNDS.problem.engine_costs(H800.gpu, 1)
    attempt = demand.mean
    expected = attempt.env_s + attempt.score_s + 2 * attempt.prefill_s(costs) + attempt.sampled / 50
    attempt_s = EngineSlowdown(reading=2.0, token_s=0.02).attempt_s(attempt, costs)
    assert attempt_s == pytest.approx(expected, rel=1e-12)


def test_no_step_is_shorter_than_its_floor():
    assert estimate(make_plan(), floor_s=10_000.0) == 10_000.0


def test_a_step_takes_longer_with_fewer_engines_environments_and_slower_weights():
    plain = estimate(make_plan())
    few = (PoolShare(pool=H800, gpus=2, tp=1), PoolShare(pool=H20, gpus=1, tp=1))
    assert estimate(make_plan(rollout=few)) > plain
    assert estimate(make_plan(slots=16)) > plain
    assert estimate(make_plan(), served_s=100.0) > plain


def test_a_larger_window_shortens_the_step():
    assert estimate(make_plan(alpha=3), served_s=50.0) < estimate(make_plan(), served_s=50.0)
    assert estimate(make_plan(extra_groups=4)) <= estimate(make_plan())


def test_tasks_that_may_go_anywhere_are_spread_by_engines():
    assert estimate(make_plan(serves=NOWHERE_SPECIAL)) == pytest.approx(
        estimate(make_plan()), rel=0.5
    )


def test_an_engine_that_reads_all_the_time_never_gets_to_sample():
    alone = make_plan(rollout=(PoolShare(pool=H20, gpus=1, tp=1),), serves={"reader": "h20"})
    reader = replace(BOUNDS.problem, tasks=BOUNDS.problem.tasks[:1])
    bounds = Bounds(reader)
    guess = estimate_s(reader, alone, demands=bounds.demands, served_s=0.0, floor_s=1e-6)
    read_s = reader.attempts * bounds.demands[0].mean.prefill_s(reader.engine_costs(H20.gpu, 1))
    assert read_s < guess < inf


def test_a_split_that_reads_elsewhere_is_not_slowed_by_reading():
    rollout = (PoolShare(pool=H800, gpus=16, tp=1, prefill=1, decode=1), make_plan().rollout[1])
    assert estimate(make_plan(rollout=rollout)) > 0


@pytest.mark.parametrize("slots", [16, 64])
def test_the_guess_is_of_the_order_of_a_simulated_step(slots):
    runner = TrialRunner(BOUNDS, events=0)
    trial = runner.trial(make_plan(slots=slots))
    simulated_s = runner.run(trial, Scale(attempts=32, steps=5, skip=2)).step_s
    assert 0.5 < runner.guess(trial) / simulated_s < 2
