import numpy as np
import pytest

from rollart.types import ArraySteps, ArrayValue, Version


def steps(**changes) -> ArraySteps:
    given = {
        "observations": {"camera": np.zeros((2, 4, 4), "uint8")},
        "actions": np.array([[0.1, -0.3], [0.0, 0.2]], "float32"),
        "logprobs": np.array([-1.2, -0.9], "float32"),
        "rewards": (0.0, 1.0),
        "versions": (Version(3), Version(4)),
        "latents": {"noise": np.ones((2, 3))},
    }
    return ArraySteps(**(given | changes))


def test_every_array_has_a_name_of_its_own():
    assert list(steps().arrays()) == ["observations.camera", "actions", "logprobs", "latents.noise"]
    assert all(isinstance(array, ArrayValue) for array in steps().arrays().values())
    assert len(steps()) == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"actions": np.zeros((3, 2))}, "actions has 3 rows for 2 steps: stack one row a step"),
        ({"latents": {"noise": np.float64(1)}}, "latents.noise has None rows for 2 steps"),
        ({"versions": (Version(3),)}, "1 versions for 2 steps"),
    ],
)
def test_arrays_that_are_not_stacked_by_step_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        steps(**changes)


def test_steps_are_equal_if_all_their_numbers_are():
    assert steps() == steps()
    assert hash(steps()) == hash(steps())
    assert steps() != steps(actions=np.zeros((2, 2), "float32"))
    assert steps() != steps(logprobs=np.array([-1.2, -0.9], "float64"))
    assert steps() != steps(rewards=(0.0, 0.5))
    assert steps() != "steps"
