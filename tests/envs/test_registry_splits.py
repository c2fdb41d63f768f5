from itertools import count

from rollart.envs.registry import draw_of_split, split_of


def draw(split, *, redraws=50):
    numbers = count()
    return draw_of_split(lambda: next(numbers), str, split=split, redraws=redraws)


def test_one_problem_in_five_is_kept_for_evaluations():
    splits = [split_of(f"problem {number}") for number in range(5000)]
    assert set(splits) == {"train", "test"}
    assert 900 < splits.count("test") < 1100


def test_draws_repeat_until_the_split_fits():
    found = {split: draw(split) for split in ("train", "test")}
    assert {split: split_of(str(number)) for split, number in found.items()} == {
        "train": "train",
        "test": "test",
    }
    assert 0 in found.values()


def test_without_a_split_the_first_draw_is_taken():
    assert draw(None) == 0


def test_a_split_that_has_no_problem_ends_with_the_last_draw():
    assert draw("nowhere", redraws=7) == 7
