"""Independent runs in one process or several."""

import os

import pytest

from rollart.errors import UserError
from studies.parallel import run_all


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_come_in_the_order_of_what_was_asked(jobs):
    said: list[str] = []
    assert run_all(int, ["3", "1", "2"], jobs=jobs, progress=said.append) == [3, 1, 2]
    assert len(said) == 3
    assert said[0].startswith(f"{jobs - 1} of 3 runs, ")


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_goes_wrong_is_raised_where_it_was_asked_for(jobs):
    with pytest.raises(ValueError, match="invalid literal"):
        run_all(int, ["1", "x"], jobs=jobs, progress=lambda _: None)


def test_a_process_that_ends_is_one_message():
    with pytest.raises(UserError, match="use fewer processes"):
        run_all(os._exit, [3, 3], jobs=2, progress=lambda _: None)
