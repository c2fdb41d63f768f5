"""An engine that many callers use: what a caller that is gone had asked is dropped."""

import asyncio

import pytest
from conditions import BOUND_S, until
from live_parts import ENGINE, STOP, say

from rollart.cluster import engine_server as engine_server
from rollart.cluster.engine_server import EngineServer, SessionEnded
from rollart.inference.driver import EngineDriver, RequestError
from rollart.inference.scripted import ScriptedEngine
from rollart.types import Request, Sampling


class Noting(ScriptedEngine):
    """Remembers which sessions it was told to forget."""

    def __init__(self, script):
        super().__init__(script)
        self.forgotten = []

    def forget(self, session):
        self.forgotten.append(session)
        super().forget(session)


def ask(session, *, max_tokens=10**6):
    return Request(
        session=session,
        turn=0,
        domain="games",
        tokens=(1, 2, 3),
        sampling=Sampling(max_tokens=max_tokens),
        stop=(STOP,),
        seed=1,
    )


def served(scenario):
    async def run():
        engine = Noting(say("x" * 100_000))
        server = EngineServer(EngineDriver(engine, id=ENGINE, fetch=lambda _version: {}))
        await server.start()
        try:
            await asyncio.wait_for(scenario(server, engine), BOUND_S)
        finally:
            await server.close()

    asyncio.run(run())


def test_what_a_caller_that_is_gone_had_asked_is_aborted_and_forgotten():
    async def scenario(server, engine):
        answers = await server.exchange("gone", 0, [ask(1, max_tokens=2)])
        assert [each.session for each in answers] == [1]
        lasting = asyncio.create_task(server.exchange("gone", 1, [ask(2), ask(3)]))
        await until(lambda: engine.busy)
        await server.leave("gone")
        with pytest.raises(RequestError, match="gone was dropped as lost"):
            await lasting
        await until(lambda: not engine.busy)
        sampled = engine.stats()["sampled_tokens"]
        answers = await server.exchange("here", 0, [ask(4, max_tokens=2)])
        assert [each.session for each in answers] == [4]
        assert engine.stats()["sampled_tokens"] == sampled + 2
        assert sorted(engine.forgotten) == [1, 2, 3]
        assert list(server._callers) == ["here"]

    served(scenario)


def test_what_others_asked_goes_on_when_a_caller_is_gone():
    async def scenario(server, engine):
        await server.exchange("here", 0, [ask(1, max_tokens=1)])
        going = asyncio.create_task(server.exchange("here", 1, [ask(2, max_tokens=500)]))
        leaving = asyncio.create_task(server.exchange("gone", 0, [ask(3)]))
        await until(lambda: engine.busy)
        await server.leave("gone")
        await asyncio.wait({leaving})
        assert [(each.session, len(each.tokens)) for each in await going] == [(2, 500)]
        assert engine.forgotten == [3]
        assert isinstance(leaving.exception(), RequestError)

    served(scenario)


def test_what_a_caller_sent_before_its_end_was_known_starts_nothing_after():
    async def scenario(server, engine):
        await server.leave("gone")
        with pytest.raises(RequestError, match="gone was dropped as lost"):
            await server.exchange("gone", 0, [ask(1)])
        await asyncio.sleep(0.01)
        assert (engine.busy, dict(server._callers)) == (False, {})

    served(scenario)


def test_only_the_latest_sessions_of_a_caller_are_remembered(monkeypatch):
    monkeypatch.setattr(engine_server, "_MOST_HELD", 2)

    async def scenario(server, engine):
        for number, session in enumerate((1, 2, 1, 3, 4)):
            await server.exchange("gone", number, [ask(session, max_tokens=1)])
        await server.exchange("gone", 5, [SessionEnded(session=4), ask(5, max_tokens=1)])
        await server.leave("gone")
        await until(lambda: len(engine.forgotten) == 3)
        assert engine.forgotten == [4, 3, 5]

    served(scenario)
