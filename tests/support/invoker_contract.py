"""What every reward invoker must hold; a new one is done when it passes.

The functions are those of `contract_rewards.py`, called as `contract_rewards:NAME`.
"""

import asyncio

import pytest
from serverless_calls import attempt, call

from rollart.errors import ScoreError
from rollart.ports import RewardInvoker
from rollart.rewards.scoring import score


async def keep_the_contract(invoker: RewardInvoker) -> None:
    """Check an invoker; the caller closes it."""
    singles = [
        call("contract_rewards:graded", attempt(*("ä b", "c") * n), scale=0.1 * n)
        for n in range(1, 8)
    ]
    group = call("contract_rewards:ranked", *(attempt("a" * n) for n in range(8)), is_group=True)
    calls = [*singles, group]
    assert await asyncio.gather(*map(invoker.invoke, calls)) == [await score(c) for c in calls]
    for function, reason, is_final in (
        ("raising", "raised RuntimeError: no grader here", False),
        ("not_finite", "returned nan (float)", True),
        ("wrong_kind", "returned None (NoneType)", True),
    ):
        with pytest.raises(ScoreError) as error:
            await invoker.invoke(call(f"contract_rewards:{function}"))
        assert reason in str(error.value)
        assert error.value.is_final is is_final
    with pytest.raises(ScoreError):
        await invoker.invoke(call("contract_rewards:ranked", attempt("a"), attempt("b")))
    assert all(isinstance(value, int | float) for value in invoker.stats().values())
