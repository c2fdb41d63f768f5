"""Where scoring runs: workers that are always there, instances that come and go."""

import pytest

from rollart.config.simulation import ScoringOptions
from rollart.errors import ConfigError
from rollart.sim.loop import Loop
from rollart.sim.simulator import RewardWorkers


def play(options: ScoringOptions, *, at: list[float], seconds: float, until: float = 0.0):
    loop, ends = Loop(), []
    place = RewardWorkers(options, loop=loop)
    for moment in at:
        loop.after(moment, lambda: place.submit(seconds, lambda: ends.append(loop.now)))
    loop.after(until, lambda: None)
    while loop.step() and (not until or loop.now < until):
        pass
    return place, ends


def test_dedicated_workers_take_scores_in_order():
    place, ends = play(
        ScoringOptions(kind="dedicated", max_instances=2),
        at=[0.0, 0.0, 0.0],
        seconds=4.0,
        until=16.0,
    )
    assert ends == [4.0, 4.0, 8.0]
    assert place.utilisation == pytest.approx(12 / (2 * 16))
    assert place.cold_starts == 0


def test_an_elastic_instance_starts_cold_once_and_is_used_again():
    options = ScoringOptions(max_instances=10, cold_start_s=2.0, idle_s=30.0)
    place, ends = play(options, at=[0.0, 10.0], seconds=4.0)
    assert ends == [6.0, 14.0]
    assert place.cold_starts == 1


def test_an_idle_instance_goes_after_a_while_and_costs_no_more():
    options = ScoringOptions(max_instances=10, cold_start_s=2.0, idle_s=5.0)
    place, ends = play(options, at=[0.0, 100.0], seconds=4.0, until=1000.0)
    assert ends == [6.0, 106.0]
    assert place.cold_starts == 2
    assert place.utilisation == pytest.approx(8 / 22)


def test_no_more_instances_than_the_limit():
    options = ScoringOptions(max_instances=2, cold_start_s=1.0, idle_s=5.0)
    place, ends = play(options, at=[0.0] * 4, seconds=4.0)
    assert ends == [5.0, 5.0, 9.0, 9.0]
    assert place.cold_starts == 2


@pytest.mark.parametrize(
    ("field", "value"), [("max_instances", 0), ("cold_start_s", -1), ("idle_s", -1)]
)
def test_a_wrong_field_is_named(field, value):
    with pytest.raises(ConfigError, match=f"rewards.{field}"):
        ScoringOptions(**{field: value})


def test_a_score_that_waits_is_taken_by_whichever_instance_is_free_first():
    options = ScoringOptions(max_instances=10, cold_start_s=10.0, idle_s=30.0)
    place, ends = play(options, at=[0.0, 13.0], seconds=4.0)
    assert ends == [14.0, 18.0]
    assert place.cold_starts == 2
