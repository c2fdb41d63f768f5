"""Several functions in one call add up by weight, over one attempt or a group."""

import asyncio

import pytest
from rewarded import attempt, call

from rollart.errors import ScoreError
from rollart.rewards.scoring import score
from rollart.types import Reward

HERE = __name__


def length(trajectory, *, unit=1.0):
    return len(trajectory.turns[-1].action) * unit


async def vowels(trajectory):
    await asyncio.sleep(0)
    return Reward(value=sum(c in "aeiou" for c in trajectory.turns[-1].action), parts={"a": 1})


def rank(trajectories):
    order = sorted(len(t.turns[-1].action) for t in trajectories)
    return [order.index(len(t.turns[-1].action)) for t in trajectories]


def broken(trajectory):
    raise RuntimeError("no luck")


LENGTH = {"function": f"{HERE}:length", "weight": 0.5, "options": {"unit": 2.0}}
VOWELS = {"function": f"{HERE}:vowels", "name": "open"}
RANK = {"function": f"{HERE}:rank", "weight": -1}
BROKEN = {"function": f"{HERE}:broken", "weight": 0}


def test_functions_of_one_attempt_add_up():
    got = asyncio.run(score(call("weighted", attempt("banana"), terms=[LENGTH, VOWELS])))
    assert got == (Reward(value=9.0, parts={"length": 12.0, "open": 3.0, "open/a": 1.0}),)


def test_in_a_group_each_function_is_called_in_its_own_shape():
    group = (attempt("ab"), attempt("a"))
    got = asyncio.run(score(call("weighted_group", *group, is_group=True, terms=[LENGTH, RANK])))
    assert got == (
        Reward(value=1.0, parts={"length": 4.0, "rank": 1.0}),
        Reward(value=1.0, parts={"length": 2.0, "rank": 0.0}),
    )


def refused(*terms: object) -> str:
    with pytest.raises(ScoreError) as caught:
        asyncio.run(score(call("weighted", attempt("a"), terms=list(terms))))
    return str(caught.value)


def test_a_failed_function_fails_the_whole():
    message = f"weighted: broken: {HERE}:broken raised RuntimeError: no luck"
    assert refused(LENGTH, BROKEN) == message


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ([], "reward.terms = []: must be a list of at least one function"),
        ([3], "reward.terms = 3: each must be an object of function, name, weight, options"),
        ([{"weight": 1}], "reward.terms.function: must name a function"),
        ([{"function": "exact", "wieght": 1}], "reward.terms.wieght = 1: use function, name"),
        ([{"function": "a:f", "weight": True}], "weight = True: must be a finite number"),
        ([{"function": "a:f", "weight": "1"}], "weight = '1': must be a finite number"),
        ([{"function": "a:f", "name": "a/b"}], "name = 'a/b': must be a name without /"),
        ([{"function": "a:f", "options": []}], "options = []: must be an object"),
        ([{"function": "a:f"}, {"function": "b:f"}], "name = 'f': is used twice"),
        ([RANK], "it compares attempts: use it in weighted_group"),
    ],
)
def test_wrong_terms_are_named(terms: list[object], message: str):
    assert message in refused(*terms)
