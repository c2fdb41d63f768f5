from math import inf

import pytest
from planning_samples import make_plan, make_problem, make_rules

from rollart.planning.bounds import Bounds
from rollart.planning.trials import Scale, TrialRunner


@pytest.mark.parametrize("seed", range(6))
def test_a_trainer_that_never_waits_takes_its_arithmetic_whatever_was_drawn(seed):
    bounds = Bounds(make_problem(rules=make_rules(alpha=3)))
    runner = TrialRunner(bounds, events=0)
    trial = runner.trial(make_plan(alpha=3, slots=128))
    figures = runner.run(trial, Scale(attempts=8, steps=6, skip=2, seed=seed))
    assert figures.training == pytest.approx(1)
    assert figures.step_s == pytest.approx(trial.bound.training_s)
    assert figures.tokens_per_s == pytest.approx(bounds.batch_tokens / figures.step_s)


def test_a_lucky_run_reaches_no_less_than_the_bound():
    runner = TrialRunner(Bounds(make_problem()), events=0)
    trial = runner.trial(make_plan())
    scale = Scale(attempts=32, steps=3, skip=1)
    runner.run(trial, scale)
    bound_s = trial.bound.step_s
    assert runner.reach(trial, scale) == max(runner.value(trial, scale), bound_s) >= bound_s


def test_a_plan_has_one_trial_and_each_run_is_made_once():
    runner = TrialRunner(Bounds(make_problem()), events=10_000_000)
    trial = runner.trial(make_plan())
    assert (runner.trial(make_plan()) is trial, runner.tried) == (True, [])
    scale = Scale(attempts=32, steps=3, skip=1)
    assert runner.value(trial, scale) == inf
    first = runner.run(trial, scale)
    spent = runner.spent
    assert (runner.run(trial, scale), runner.spent, runner.simulated) == (first, spent, 1)
    assert runner.tried == [trial]


def test_the_mean_over_runs_is_harmonic_for_rates_and_the_worst_for_staleness():
    runner = TrialRunner(Bounds(make_problem()), events=0)
    trial = runner.trial(make_plan())
    scales = [Scale(attempts=32, steps=3, skip=1, seed=seed) for seed in (0, 1)]
    both = runner.run(trial, *scales)
    one, two = (trial.figures(scale) for scale in scales)
    assert both.step_s == pytest.approx((one.step_s + two.step_s) / 2)
    assert both.tokens_per_s == pytest.approx(2 / (1 / one.tokens_per_s + 1 / two.tokens_per_s))
    assert both.utilisation["h20"] == pytest.approx(
        (one.utilisation["h20"] + two.utilisation["h20"]) / 2
    )
    assert both.staleness == max(one.staleness, two.staleness)


def test_what_a_run_costs_is_known_from_the_dearest_so_far():
    scale = Scale(attempts=32, steps=3, skip=1)
    runner = TrialRunner(Bounds(make_problem()), events=1)
    assert runner.can_afford(scale)
    runner.run(runner.trial(make_plan()), scale)
    assert runner.spent > 1
    assert not runner.can_afford(scale)
    rich = TrialRunner(Bounds(make_problem()), events=4 * runner.spent)
    rich.run(rich.trial(make_plan()), scale)
    assert rich.can_afford(scale)
    assert not rich.can_afford(scale, until=0.3)


def test_where_cost_counts_a_plan_is_worth_its_price():
    runner = TrialRunner(Bounds(make_problem(objective="cost")), events=0)
    trial = runner.trial(make_plan())
    assert runner.worth(trial, 3600.0) == pytest.approx(make_plan().hour_price)
