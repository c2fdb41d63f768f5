from collections import Counter

import pytest

from rollart.errors import UserError
from rollart_robot.tasks import available_tasks, evaluation_seeds, find_task, reset_seeds


def test_there_are_50_metaworld_tasks_in_four_classes():
    tasks = available_tasks()
    assert Counter(task.suite for task in tasks) == {"toy": 1, "metaworld": 50, "adroit": 4}
    assert Counter(task.difficulty for task in tasks if task.difficulty) == {
        "easy": 28,
        "medium": 11,
        "hard": 6,
        "very hard": 5,
    }
    assert len({task.name for task in tasks}) == 55


@pytest.mark.parametrize("name", ["pick-place", "pick-place-v3", "Pick_Place"])
def test_a_task_is_found_with_and_without_its_version(name: str):
    assert find_task(name).name == "pick-place"


def test_hammer_is_metaworlds_and_adroit_hammer_is_adroits():
    assert find_task("hammer").suite == "metaworld"
    assert find_task("adroit-hammer").suite == "adroit"


@pytest.mark.parametrize(
    ("name", "near"), [("pick-plase", "'pick-place'"), ("pen", "'adroit-pen'"), ("?", "pick-place")]
)
def test_an_unknown_task_is_answered_with_the_nearest(name: str, near: str):
    with pytest.raises(UserError, match=f"robot task .* does not exist.*{near}"):
        find_task(name)


def test_seeds_of_different_purposes_never_meet():
    many = 10_000
    sets = [
        set(reset_seeds(purpose, seed=seed, count=many))
        for purpose in ("demonstrations", "training", "evaluation")
        for seed in (0, 1)
    ]
    assert all(len(one) == many for one in sets)
    assert not (sets[0] | sets[1]) & (sets[2] | sets[3] | sets[4] | sets[5])
    assert not (sets[2] | sets[3]) & (sets[4] | sets[5])


def test_evaluation_seeds_are_the_same_each_time_and_differ_by_seed():
    assert evaluation_seeds(3, 50) == evaluation_seeds(3, 50)
    assert not set(evaluation_seeds(3, 50)) & set(evaluation_seeds(4, 50))


def test_later_seeds_continue_earlier_ones():
    assert reset_seeds("training", seed=1, count=5)[2:] == reset_seeds(
        "training", seed=1, count=3, start=2
    )


def test_a_negative_seed_is_refused():
    with pytest.raises(UserError, match="seed = -1"):
        evaluation_seeds(-1, 2)
