from math import inf, sqrt

import pytest

from rollart.control.task_order import AttemptDurations


def test_a_group_is_expected_to_take_as_long_as_its_slowest_member():
    durations = AttemptDurations()
    assert durations.expected_s("game") == inf
    for took_s in (2.0, 4.0, 6.0):
        durations.note("game", took_s)
    assert durations.known["game"] == pytest.approx((3, 4.0, 8 / 3))
    assert durations.expected_s("game") == pytest.approx(4.0 + 2 * sqrt(8 / 3))


def test_a_cancelled_attempt_counts_only_where_it_ran_longer_than_usual():
    durations = AttemptDurations()
    durations.note_cancelled("game", 5.0)
    assert durations.known == {}
    durations.note("game", 2.0)
    durations.note_cancelled("game", 1.0)
    durations.note_cancelled("game", 4.0)
    assert durations.known["game"] == pytest.approx((2, 3.0, 1.0))


def test_the_latest_attempts_count_most():
    durations = AttemptDurations()
    for took_s in [1.0] * 500 + [3.0] * 100:
        durations.note("game", took_s)
    assert durations.known["game"][1] == pytest.approx(3.0, abs=0.02)


def usual_of(**took_s):
    """Return what is usual after these attempts, by domain."""
    usual = AttemptDurations(most=4.0)
    for domain, times in took_s.items():
        for each_s in times:
            usual.note(domain, each_s)
    return usual


def test_an_attempt_is_late_after_twice_the_mean_and_two_deviations():
    assert usual_of(swe=[2.0, 6.0]).late_s("swe") == pytest.approx(2 * (4.0 + 2 * 2.0))


def test_one_attempt_that_crawls_does_not_become_usual():
    usual = usual_of(swe=[1.0] * 40)
    assert usual.late_s("swe") == pytest.approx(2.0)
    usual.note("swe", 1000.0)
    assert usual.late_s("swe") < 6.0


def test_the_first_attempts_count_whole_however_quick_the_very_first_was():
    assert usual_of(swe=[0.0, 8.0]).late_s("swe") > 8.0


def test_a_domain_of_which_none_has_finished_is_given_the_time_of_the_slowest():
    usual = usual_of(swe=[5.0], math=[1.0])
    assert usual.late_s("web") == usual.late_s("swe") == 10.0


def test_nothing_is_late_before_anything_has_finished():
    assert AttemptDurations(most=4.0).late_s("swe") == inf


def test_attempts_that_took_no_time_do_not_make_all_later_ones_late():
    assert usual_of(swe=[0.0] * 8 + [5.0] * 200).late_s("swe") == pytest.approx(10.0, rel=0.1)
