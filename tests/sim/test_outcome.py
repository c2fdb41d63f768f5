"""The figures of a run, and how they follow from its steps."""

from dataclasses import replace

import pytest
from small_worlds import small_cluster, small_world

from rollart.config.simulation import Constants
from rollart.control.rules import MODES
from rollart.control.staleness import Staleness
from rollart.sim.outcome import Collector, SimOutcome, Step, simulate
from rollart.sim.simulator import Simulator

STEPS = (
    Step(began_s=30.0, ended_s=40.0, tokens=400.0, trajectories=8, staleness=0),
    Step(began_s=50.0, ended_s=60.0, tokens=600.0, trajectories=8, staleness=1),
    Step(began_s=60.0, ended_s=80.0, tokens=800.0, trajectories=8, staleness=0),
)


def outcome(skipped: int) -> SimOutcome:
    return SimOutcome(
        steps=STEPS,
        skipped=skipped,
        events=0,
        actions=0,
        seconds=85.0,
        utilisation={},
        reward_utilisation=0.0,
    )


def test_rates_leave_the_first_steps_out():
    made = outcome(1)
    assert (made.step_s, made.tokens_per_s) == (20.0, 1400 / 40)
    assert (made.rollout_s, made.train_s) == (5.0, 15.0)
    assert made.staleness == 1


def test_rates_over_all_steps():
    made = outcome(0)
    assert (made.step_s, made.tokens_per_s) == (pytest.approx(80 / 3), 1800 / 80)
    assert (made.rollout_s, made.train_s) == (pytest.approx(40 / 3), pytest.approx(40 / 3))


def test_a_step_is_waiting_and_training():
    made = simulate(small_world())
    assert made.rollout_s + made.train_s == pytest.approx(made.step_s)
    assert len(made.steps) == 3
    assert made.skipped == 1
    assert 0 < made.utilisation["compute"] <= 1
    assert 0 < made.reward_utilisation <= 1


def test_every_mode_gives_its_figures_twice_the_same():
    for mode in MODES:
        assert simulate(small_world(mode)) == simulate(small_world(mode))


def lengthened(mode: str, steps: int):
    cluster = small_cluster(constants=Constants(train_fixed_s=1.0, push_gb_s=0.5))
    world = small_world(mode, cluster=cluster, slots=48)
    rules = replace(world.rules, steps=steps, staleness=Staleness(alpha=3, at_bound="drop"))
    return replace(world, rules=rules)


@pytest.mark.parametrize("mode", MODES)
def test_a_short_run_is_the_beginning_of_a_longer_one_and_drains_nothing(mode):
    short, long = (simulate(lengthened(mode, steps)) for steps in (6, 9))
    assert short.steps == long.steps[:6]


def test_a_run_that_ends_drains_its_last_steps():
    steps: dict[bool, list[Step]] = {}
    for open_ended in (True, False):
        collector = Collector()
        world = replace(lengthened("rollart", 8), open_ended=open_ended)
        simulator = Simulator(world, observers=[collector])
        collector.attach(simulator.fleet)
        simulator.run()
        steps[open_ended] = collector.steps
        assert bool(simulator.attempts) is open_ended
    assert steps[True][:4] == steps[False][:4]
    assert steps[True][7].ended_s > steps[False][7].ended_s


def test_a_run_of_one_step_skips_none():
    world = small_world()
    made = simulate(world, skip=9)
    assert made.skipped == 2
