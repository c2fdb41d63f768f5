"""A judge may be asked through any engine: text goes in and out as token ids."""

import asyncio
from collections.abc import Sequence

import pytest
from rewarded import attempt, call

from rollart.errors import ScoreError
from rollart.inference.driver import EngineDriver
from rollart.inference.scripted import ScriptedEngine
from rollart.rewards.chat import chat_through
from rollart.rewards.context import use_model
from rollart.rewards.scoring import score
from rollart.types import EngineId, Message, Request, Reward, Sampling

STOP = 0


class Letters:
    """A renderer whose tokens are code points."""

    stop = (STOP,)

    def start(self, messages: Sequence[Message]) -> tuple[int, ...]:
        system = messages[0].text if len(messages) > 1 else ""
        return tuple(map(ord, f"{system}|{messages[-1].text}|"))

    def extend(self, messages: Sequence[Message], *, closed: bool) -> tuple[int, ...]:
        return tuple(map(ord, messages[-1].text))

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(chr(token) for token in tokens if token != STOP)


def judged(said: str, *, max_tokens: int = 64) -> tuple[Reward, ...]:
    seen: list[Request] = []

    def script(request: Request) -> tuple[int, ...]:
        seen.append(request)
        return (*map(ord, said), STOP)

    async def run() -> tuple[Reward, ...]:
        proxy = EngineDriver(ScriptedEngine(script), id=EngineId("judge"), fetch=lambda _: {})
        sampling = Sampling(temperature=0.0, max_tokens=max_tokens)
        use_model("here", chat_through(proxy, renderer=Letters(), sampling=sampling))
        serving = asyncio.create_task(proxy.run())
        try:
            return await score(call("judge", attempt("vier"), judge={"engine": "here"}))
        finally:
            use_model("here", None)
            serving.cancel()
            await asyncio.wait([serving])
            (request,) = seen
            assert (request.session, request.domain, request.stop) == (-1, "judge", (STOP,))
            assert "\nvier\n" in Letters().decode(request.tokens)

    return asyncio.run(run())


def test_an_engine_judges():
    assert judged("Good.\nGrade: 8") == (Reward(value=0.8, parts={"grade": 8.0}),)


def test_an_answer_cut_short_is_a_failure():
    with pytest.raises(ScoreError, match="the judge's answer was cut short: length") as caught:
        judged("Good.\nGrade: 8", max_tokens=4)
    assert not caught.value.is_final
