import pytest
from planning_samples import make_plan, make_problem, make_rules

from rollart.planning.bounds import Bounds
from rollart.planning.trials import Bench
from rollart.planning.worlds import Scale


@pytest.mark.parametrize("seed", range(6))
def test_a_trainer_that_never_waits_takes_its_arithmetic_whatever_was_drawn(seed):
    bounds = Bounds(make_problem(rules=make_rules(alpha=3)))
    bench = Bench(bounds, events=0)
    trial = bench.trial(make_plan(alpha=3, slots=128))
    figures = bench.run(trial, Scale(attempts=8, steps=6, skip=2, seed=seed))
    assert figures.training == pytest.approx(1)
    assert figures.step_s == pytest.approx(trial.bound.training_s)
    assert figures.tokens_per_s == pytest.approx(bounds.batch_tokens / figures.step_s)


def test_a_lucky_run_reaches_no_less_than_the_bound():
    bench = Bench(Bounds(make_problem()), events=0)
    trial = bench.trial(make_plan())
    scale = Scale(attempts=32, steps=3, skip=1)
    bench.run(trial, scale)
    bound_s = trial.bound.step_s
    assert bench.reach(trial, scale) == max(bench.value(trial, scale), bound_s) >= bound_s
