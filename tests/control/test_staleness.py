import pytest

from rollart.control.staleness import Ages, Staleness
from rollart.errors import ConfigError


def ages(*born):
    """Return one group for each version named, numbered from 0."""
    result = Ages()
    for group, version in enumerate(born):
        result.add(group, born=version)
    return result


def test_no_more_groups_are_free_than_the_trainer_takes_within_alpha_steps():
    rule = Staleness(alpha=2)
    free = [rule.free_groups(n, consumed=1, groups_per_step=4) for n in (0, 10, 11, 12)]
    assert free == [11, 1, 0, 0]


def test_a_window_ahead_counts_only_what_is_untrained():
    rule = Staleness(alpha=2, window="ahead")
    assert [rule.free_groups(n, consumed=9, groups_per_step=4) for n in (0, 7, 8)] == [8, 1, 0]


def test_a_window_ahead_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="nothing would ever start"):
        Staleness(alpha=0, window="ahead")


def test_age_is_counted_against_the_weights_being_updated():
    rule = Staleness(alpha=1)
    assert [rule.is_fresh(born, optimizer=3, served=2) for born in (1, 2, 3)] == [False, True, True]


def test_the_papers_age_is_counted_against_the_weights_served():
    rule = Staleness(alpha=1, counting="serving")
    fresh = [rule.is_fresh(born, optimizer=3, served=2) for born in (0, 1, 2)]
    assert fresh == [False, True, True]


def test_the_papers_counting_needs_engines_at_most_one_step_behind():
    paper = Staleness(counting="serving")
    assert [paper.may_train(optimizer=3, served=served) for served in (1, 2, 3)] == [
        False,
        True,
        True,
    ]
    assert Staleness().may_train(optimizer=3, served=0)


@pytest.mark.parametrize(
    ("rolling", "ready", "holds"),
    [
        ([], [2, 2], False),
        ([1], [1, 1], False),
        ([1], [2, 2], True),
        ([1, 1, 1], [1, 2], True),
        ([2, 2], [3, 3], False),
        ([2, 2, 2], [3, 3], True),
        ([2, 2, 2], [2, 3], True),
        ([2, 2, 2], [2, 2], False),
    ],
    ids=str,
)
def test_a_step_holds_for_running_work_that_later_steps_could_not_take_in_time(
    rolling, ready, holds
):
    rule = Staleness(alpha=2)
    held = rule.should_hold(
        rolling=ages(*rolling), ready=ages(*ready), optimizer=3, groups_per_step=2
    )
    assert held == holds


@pytest.mark.parametrize("options", [{"alpha": -1}, {"patience_s": -0.1}])
def test_negative_staleness_options_are_refused(options):
    ((name, value),) = options.items()
    with pytest.raises(ConfigError) as error:
        Staleness(**options)
    assert str(error.value) == f"staleness.{name} = {value}: must be at least 0"


def test_ages_find_groups_by_the_version_they_were_born_of():
    groups = ages(2, 0, 2, 1)
    assert (len(groups), sorted(groups.versions)) == (4, [0, 1, 2])
    assert [groups.count(until=version) for version in (-1, 0, 1, 2)] == [0, 1, 2, 4]
    assert groups.older_than(2) == [1, 3]


def test_ages_forget_a_version_with_its_last_group():
    groups = ages(2, 0, 2)
    groups.remove(0, born=2)
    groups.remove(1, born=0)
    assert (len(groups), groups.versions, groups.older_than(9)) == (1, [2], [2])
