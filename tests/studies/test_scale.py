"""The scale study on sizes small enough for a test."""

import cProfile
import pstats
from dataclasses import replace

import pytest

from rollart.sim.outcome import simulate
from studies.scale import ScaleResult, ScaleTrial, cost, measure, study

TINY = ScaleTrial(shape="production", gpus=12, steps=5)
SIMULATED = (
    "gpus",
    "events_per_step",
    "scheduler_events_per_step",
    "simulated_step_s",
    "tokens_per_s_gpu",
    "engines_busy",
)


def study_tiny() -> dict:
    trials = [TINY, replace(TINY, gpus=24), replace(TINY, shape="long", gpus=24, steps=1)]
    return study(trials, progress=lambda _: None, bounded=24)


def size_of(events: float, event_us: float) -> ScaleResult:
    return ScaleResult(
        trial=TINY,
        seconds=0.0,
        cpu_s=events * event_us / 1e6,
        events=events,
        handled=events / 2,
        memory_mb=0.0,
        tokens_per_s_gpu=1.0,
        step_s=1.0,
        busy=1.0,
    )


def calls_per_event(trial: ScaleTrial) -> float:
    world = trial.world(0)
    with cProfile.Profile() as profile:
        actions = simulate(world).actions
    return pstats.Stats(profile).total_calls / actions  # pyright: ignore[reportAttributeAccessIssue]


def test_the_study_says_seconds_efficiency_and_cost_for_every_size():
    said: list[str] = []
    trials = [TINY, replace(TINY, gpus=24)]
    result = study(trials, progress=said.append, bounded=24)
    assert list(result) == [
        "seconds_24",
        "efficiency",
        "events_per_s",
        "scheduler_events_per_s",
        "events",
        "cpu_s_24",
        "peak_rss_mb",
        "cost",
        "tails",
        "rows",
    ]
    assert said == [f"production: {gpus} GPUs, 5 steps, 1 seeds" for gpus in (12, 24)]
    efficiency = result["efficiency"]
    assert isinstance(efficiency, dict)
    assert list(efficiency) == ["12", "24"]
    assert efficiency["12"] == 1.0


def test_what_is_simulated_is_the_same_every_time():
    first, again = study_tiny(), study_tiny()
    for name in ("efficiency", "tails"):
        assert first[name] == again[name]
    for one, other in zip(first["rows"], again["rows"], strict=True):
        assert [one[name] for name in SIMULATED] == [other[name] for name in SIMULATED]


def test_seeds_differ_and_are_averaged():
    one, two = measure(TINY), measure(replace(TINY, seeds=2))
    assert one.step_s != two.step_s
    assert one.events == pytest.approx(two.events, rel=0.2)


@pytest.mark.parametrize(("shape", "sizes"), [("production", (24, 192)), ("long", (12, 48))])
def test_an_event_takes_no_more_calls_in_a_larger_cluster(shape, sizes):
    small, large = (calls_per_event(ScaleTrial(shape=shape, gpus=gpus, steps=2)) for gpus in sizes)
    assert large <= 1.05 * small


def test_logarithmic_cost_adds_the_same_with_each_doubling():
    figures = cost([size_of(2.0**n, 10.0 + n) for n in (10, 12, 17)])
    assert figures["fit_us_per_doubling"] == pytest.approx(1.0)
    assert figures["fit_us_at_one_event"] == pytest.approx(10.0)
    assert figures["us_per_doubling"] == pytest.approx([1.0, 1.0])
    assert figures["growth"] == pytest.approx(27 / 20)
    assert figures["growth_of_log_events"] == pytest.approx(1.7)
