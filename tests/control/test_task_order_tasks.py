from collections import Counter

import pytest

from rollart.control.task_order import TaskKind, TaskMix
from rollart.errors import ConfigError

KINDS = [
    TaskKind(name="lake", domain="game", weight=3.0),
    TaskKind(name="sums", domain="math", weight=1.0),
    TaskKind(name="never", domain="math", weight=0.0),
]


def test_a_task_depends_only_on_the_seed_and_its_index():
    mix, again = TaskMix(KINDS, seed=1), TaskMix(KINDS, seed=1)
    assert [mix.task(n) for n in range(20)] == [again.task(n) for n in reversed(range(20))][::-1]
    assert mix.task(0) != TaskMix(KINDS, seed=2).task(0)


def test_kinds_are_drawn_by_weight():
    mix = TaskMix(KINDS, seed=0)
    drawn = Counter((mix.task(n).env, mix.task(n).domain) for n in range(4000))
    assert set(drawn) == {("lake", "game"), ("sums", "math")}
    assert abs(drawn["lake", "game"] / 4000 - 0.75) < 0.03


def test_tasks_are_numbered_by_their_index():
    assert [TaskMix(KINDS, seed=0).task(n).id for n in (0, 5)] == [0, 5]


@pytest.mark.parametrize("weights", [[], [0.0], [1.0, -1.0], [2.0, -1.0]])
def test_weights_that_cannot_be_drawn_by_are_refused(weights):
    kinds = [TaskKind(name="lake", domain="game", weight=weight) for weight in weights]
    with pytest.raises(ConfigError) as error:
        TaskMix(kinds, seed=0)
    assert str(error.value) == f"tasks.weight = {weights}: weights must be >= 0 and not all 0"


def test_the_domain_of_a_task_is_known_without_making_it():
    mix = TaskMix(KINDS, seed=3)
    assert [mix.domain(n) for n in range(50)] == [mix.task(n).domain for n in range(50)]
    assert [mix.name(n) for n in range(50)] == [mix.task(n).env for n in range(50)]
