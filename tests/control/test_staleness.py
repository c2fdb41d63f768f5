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
    rule = Staleness(alpha=1, at_bound="wait")
    assert [rule.is_fresh(born, optimizer=3, served=2) for born in (1, 2, 3)] == [False, True, True]


def test_the_papers_age_is_counted_against_the_weights_served():
    rule = Staleness(alpha=1, counting="serving", at_bound="drop")
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
    ahead = Staleness(alpha=2, window="ahead")
    assert [ahead.may_train(optimizer=3, served=served) for served in (0, 1)] == [False, True]


def test_running_work_may_finish_late_unless_told_otherwise():
    rule = Staleness(alpha=1)
    assert (rule.at_bound, rule.oldest) == ("finish", 5)
    fresh = [rule.is_fresh(born, optimizer=9, served=9) for born in (3, 4, 8)]
    assert fresh == [False, True, True]


@pytest.mark.parametrize(
    ("rule", "oldest"),
    [
        (Staleness(alpha=0), 0),
        (Staleness(alpha=2), 8),
        (Staleness(alpha=2, max_age=3), 3),
        (Staleness(alpha=2, max_age=3, at_bound="wait"), 2),
    ],
    ids=str,
)
def test_late_work_is_trained_up_to_an_age(rule, oldest):
    assert rule.oldest == oldest


def test_late_work_cannot_be_younger_than_work_on_time():
    with pytest.raises(ConfigError) as error:
        Staleness(alpha=3, max_age=2)
    assert str(error.value) == ("staleness.max_age = 2: must be at least staleness.alpha (3), or 0")


@pytest.mark.parametrize(
    ("rolling", "late", "ready", "spare", "endangered"),
    [
        ([], [], [2, 2], 0, {}),
        ([1], [], [1, 1], 0, {}),
        ([1], [], [2, 2], 0, {1: 0}),
        ([1, 1, 1], [], [1, 2], 0, {1: 0}),
        ([2, 2], [], [3, 3], 0, {}),
        ([2, 2, 2], [], [3, 3], 0, {2: 2}),
        ([2, 2, 2], [], [2, 3], 0, {2: 2}),
        ([2, 2, 2], [], [2, 2], 0, {}),
        ([1, 2, 2], [], [3, 3], 0, {1: 0, 2: 2}),
        ([1, 2, 2], [], [3, 3], 1, {}),
        ([1, 1, 2], [], [3, 3], 1, {1: 1}),
        ([0], [], [2, 2], 0, {0: 0}),
        ([0], [0], [2, 2], 0, {}),
        ([1, 2, 2], [2], [3, 3], 0, {1: 0}),
        ([1, 2, 2], [1], [3, 3], 0, {}),
    ],
    ids=str,
)
def test_running_work_that_later_steps_could_not_take_in_time_is_endangered(
    rolling, late, ready, spare, endangered
):
    rule = Staleness(alpha=2, at_bound="wait")
    found = rule.find_endangered(
        rolling=ages(*rolling),
        late=ages(*late),
        ready=ages(*ready),
        optimizer=3,
        groups_per_step=2,
        spare=spare,
    )
    assert found == endangered


@pytest.mark.parametrize("options", [{"alpha": -1}, {"patience_s": -0.1}])
def test_negative_staleness_options_are_refused(options):
    ((name, value),) = options.items()
    with pytest.raises(ConfigError) as error:
        Staleness(**options)
    assert str(error.value) == f"staleness.{name} = {value}: must be at least 0"


def test_ages_find_groups_by_the_version_they_were_born_of():
    groups = ages(2, 0, 2, 1)
    assert (len(groups), sorted(groups), sorted(groups.versions)) == (4, [0, 1, 2, 3], [0, 1, 2])
    assert [groups.count(until=version) for version in (-1, 0, 1, 2)] == [0, 1, 2, 4]
    assert groups.older_than(2) == [1, 3]


def test_ages_forget_a_version_with_its_last_group():
    groups = ages(2, 0, 2)
    groups.remove(0, born=2)
    groups.remove(1, born=0)
    assert (len(groups), groups.versions, groups.older_than(9)) == (1, [2], [2])


def test_ages_forget_a_group_that_may_not_be_there():
    groups = ages(2, 0)
    assert [groups.discard(0, born=2), groups.discard(0, born=2)] == [True, False]
    assert list(groups) == [1]
    groups.clear()
    assert len(groups) == 0
