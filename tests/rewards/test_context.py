"""A process says what it offers functions, by itself or by a name in its environment."""

import asyncio
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from checkout import ROOT
from rewarded import attempt, call

from rollart.errors import ConfigError, ScoreError
from rollart.rewards import context
from rollart.rewards.context import SET_UP_VARIABLE, get_model, get_sandbox, use_model, use_sandbox
from rollart.rewards.invoke.pool import LocalInvoker
from rollart.types import Program, ProgramLimits, ProgramResult, Reward, ScoreCall

EXAMPLE = ROOT / "examples" / "rewards.py"


class Quiet:
    """A sandbox that runs nothing."""

    limits = ProgramLimits()

    async def run(self, program: Program) -> ProgramResult:
        raise AssertionError

    async def close(self) -> None:
        pass


async def echo(messages) -> str:
    return messages[-1]["content"]


def offer() -> None:
    use_sandbox(Quiet)
    use_model("echo", echo)


@pytest.fixture(autouse=True)
def nothing_offered(monkeypatch):
    monkeypatch.delenv(SET_UP_VARIABLE, raising=False)
    yield
    use_sandbox(None)
    use_model("echo", None)
    context._done.clear()


def test_a_sandbox_is_opened_once_for_each_event_loop():
    use_sandbox(Quiet)

    async def twice() -> tuple[object, object]:
        return get_sandbox(), get_sandbox()

    (first, again), (other, _) = asyncio.run(twice()), asyncio.run(twice())
    assert first is again
    assert first is not other


def test_the_environment_names_what_is_called_at_the_first_need(monkeypatch):
    monkeypatch.setenv(SET_UP_VARIABLE, f"{__name__}:offer")
    assert get_model("echo") is echo

    async def one() -> object:
        return get_sandbox()

    assert isinstance(asyncio.run(one()), Quiet)


def slowly_offer() -> None:
    entered.set()
    assert may_go_on.wait(10)
    offer()


entered, may_go_on = threading.Event(), threading.Event()


def test_a_need_that_comes_while_the_process_is_set_up_waits(monkeypatch):
    monkeypatch.setenv(SET_UP_VARIABLE, f"{__name__}:slowly_offer")
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(get_model, "echo")
        assert entered.wait(10)
        second = pool.submit(get_model, "echo")
        with pytest.raises(TimeoutError):
            second.result(0.05)
        may_go_on.set()
        assert (first.result(10), second.result(10)) == (echo, echo)


failures = [OSError("not yet")]


def offer_at_last() -> None:
    if failures:
        raise failures.pop()
    offer()


def test_setting_up_that_failed_is_tried_again(monkeypatch):
    monkeypatch.setenv(SET_UP_VARIABLE, f"{__name__}:offer_at_last")
    with pytest.raises(OSError, match="not yet"):
        get_model("echo")
    assert get_model("echo") is echo


def test_what_is_not_offered_is_told_with_how_to():
    with pytest.raises(
        ScoreError, match=r"this process has no model called 'echo'; its models: none"
    ):
        get_model("echo")

    async def one() -> object:
        return get_sandbox()

    with pytest.raises(
        ScoreError, match=r"set ROLLART_REWARD_SETUP to a module:function"
    ) as caught:
        asyncio.run(one())
    assert caught.value.is_final


def test_a_wrong_name_in_the_environment_is_told(monkeypatch):
    monkeypatch.setenv(SET_UP_VARIABLE, f"{__name__}:offers")
    with pytest.raises(ConfigError, match=r"ROLLART_REWARD_SETUP = .* has no function offers"):
        get_model("echo")


def invoked(*calls: ScoreCall) -> list[tuple[Reward, ...]]:
    async def run() -> list[tuple[Reward, ...]]:
        invoker = LocalInvoker()
        try:
            return [await invoker.invoke(each) for each in calls]
        finally:
            await invoker.close()

    return asyncio.run(run())


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
def test_shipped_functions_score_in_processes_of_their_own_with_a_real_sandbox(monkeypatch):
    monkeypatch.setenv(SET_UP_VARIABLE, f"{EXAMPLE}:offer_sandbox")
    program = "```python\ndef add(a, b): return a + b\n```"
    tests = ["assert add(1, 2) == 3", "import socket; socket.create_connection(('127.0.0.1', 9))"]
    got = invoked(
        call("math", attempt(r"\boxed{0.5}", payload={"answer": "1/2"})),
        call("unit_tests", attempt(program, payload={"tests": tests}), mode="fraction"),
        call("weighted", attempt("B"), terms=[{"function": "repetition"}]),
    )
    assert got == [
        (Reward(value=1.0, parts={"stopped": 0.0}),),
        (Reward(value=0.5, parts={"passed": 1.0, "total": 2.0, "stopped": 0.0}),),
        (Reward(value=0.0, parts={"repetition": 0.0}),),
    ]
