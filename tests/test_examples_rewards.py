"""The example file scores as its text says."""

import asyncio

import pytest
from checkout import ROOT
from rewarded import attempt, call

from rollart.errors import ScoreError
from rollart.rewards.scoring import score
from rollart.types import Reward

FILE = ROOT / "examples" / "rewards.py"


def test_the_right_answer_pays_and_brevity_a_little():
    for answer, right, short in (("4", 1.0, 1.0), ("it is 4", 1.0, 0.0), ("5", 0.0, 0.0)):
        one = call(f"{FILE}:short_and_right", attempt(answer, payload={"answer": 4}))
        wanted = Reward(value=right + 0.1 * short, parts={"right": right, "short": short})
        assert asyncio.run(score(one)) == (wanted,)


def test_a_task_without_an_answer_is_no_score():
    with pytest.raises(ScoreError, match="the task has no answer"):
        asyncio.run(score(call(f"{FILE}:short_and_right", attempt("4"))))


def test_the_shortest_of_a_group_wins():
    group = [attempt("a", tokens=tokens) for tokens in (5, 3, 3)]
    got = asyncio.run(score(call(f"{FILE}:shortest_wins", *group, is_group=True)))
    assert [reward.value for reward in got] == [0.0, 1.0, 1.0]
