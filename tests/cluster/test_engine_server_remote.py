"""An engine served by calls: the same completions, and nothing lost when it is gone."""

import asyncio

import pytest
from conditions import BOUND_S
from inline_handle import InlineHandle
from live_parts import ENGINE, STOP, say

from rollart.cluster.engine_server import EngineServer, RemoteEngine
from rollart.errors import ActorDiedError
from rollart.inference.driver import EngineDriver, RequestError
from rollart.inference.scripted import ScriptedEngine
from rollart.types import Request, Sampling

LONG = "x" * 20_000


def ask(session, turn=0, tokens=(1, 2, 3), max_tokens=10**6):
    return Request(
        session=session,
        turn=turn,
        domain="games",
        tokens=tokens,
        sampling=Sampling(max_tokens=max_tokens),
        stop=(STOP,),
        seed=session,
    )


def served(scenario, *, text="go", answer_s=BOUND_S):
    async def run():
        engine = ScriptedEngine(say(text))
        proxy = EngineDriver(engine, id=ENGINE, fetch=lambda version: {"version": version})
        server = EngineServer(proxy)
        handle = InlineHandle(server)
        assert await handle.call("start") == 0
        lost = []
        remote = RemoteEngine(
            handle,
            id=ENGINE,
            caller="w",
            lose=lambda id_, error: lost.append((id_, str(error))),
            answer_s=answer_s,
        )
        try:
            return await asyncio.wait_for(scenario(remote, handle, engine, lost), BOUND_S)
        finally:
            remote.close()
            await server.close()

    return asyncio.run(run())


def test_requests_that_start_together_are_completed_in_few_calls():
    async def scenario(remote, handle, engine, lost):
        completions = await asyncio.gather(*(remote.generate(ask(n)) for n in range(64)))
        assert [(each.session, each.tokens) for each in completions] == [
            (n, (ord("g"), ord("o"), STOP)) for n in range(64)
        ]
        assert handle.calls.count("exchange") < 10

    served(scenario)


def test_who_cancels_a_request_elsewhere_is_told_what_it_had_sampled():
    async def scenario(remote, handle, engine, lost):
        told = []
        task = asyncio.create_task(remote.generate(ask(1), told.append))
        while not engine.stats()["sampled_tokens"]:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait({task})
        while engine.busy:
            await asyncio.sleep(0.001)
        sampled = engine.stats()["sampled_tokens"]
        await remote.generate(ask(2, max_tokens=1))
        while not told:
            await remote.generate(ask(3, max_tokens=1))
        assert told == [sampled]

    served(scenario, text=LONG)


def test_a_cancelled_request_is_aborted_and_its_session_forgotten():
    async def scenario(remote, handle, engine, lost):
        task = asyncio.create_task(remote.generate(ask(1)))
        while not engine.busy:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while engine.busy:
            await asyncio.sleep(0.001)
        assert (await remote.generate(ask(2, max_tokens=1))).session == 2

    served(scenario, text=LONG)


def test_what_the_engine_refuses_is_told_to_the_one_who_asked():
    async def scenario(remote, handle, engine, lost):
        good, bad = await asyncio.gather(
            remote.generate(ask(1)),
            remote.generate(ask(2, max_tokens=0)),
            return_exceptions=True,
        )
        assert good.finish == "stop"
        assert isinstance(bad, RequestError)

    served(scenario)


def test_a_turn_suspended_updated_and_resumed_goes_on_under_new_weights():
    async def scenario(remote, handle, engine, lost):
        task = asyncio.create_task(remote.generate(ask(1)))
        while engine.stats()["sampled_tokens"] < 3:
            await asyncio.sleep(0)
        await remote.suspend()
        assert set(await remote.update(1)) == {"pull_s", "exposed_s", "load_s"}
        await remote.resume()
        completion = await task
        assert set(completion.versions) == {0, 1}

    served(scenario, text=LONG)


def test_an_evicted_turn_comes_back_with_what_it_has():
    async def scenario(remote, handle, engine, lost):
        task = asyncio.create_task(remote.generate(ask(1)))
        while engine.stats()["sampled_tokens"] < 3:
            await asyncio.sleep(0)
        await remote.evict()
        completion = await task
        assert completion.finish == "abort"
        assert len(completion.tokens) >= 3

    served(scenario, text=LONG)


def test_when_the_engine_is_gone_every_request_comes_back_and_it_is_told_once():
    async def scenario(remote, handle, engine, lost):
        tasks = [asyncio.create_task(remote.generate(ask(n))) for n in range(3)]
        while not engine.busy:
            await asyncio.sleep(0.001)
        handle.kill()
        completions = [await task for task in tasks]
        assert [(each.finish, each.tokens) for each in completions] == [("abort", ())] * 3
        assert (await remote.generate(ask(9))).finish == "abort"
        assert lost == [(ENGINE, "the actor is gone")]

    served(scenario, text=LONG)


def test_whoever_asks_an_engine_that_is_gone_lets_others_run_meanwhile():
    async def scenario(remote, handle, engine, lost):
        remote.lost(ConnectionError("gone"))
        other = asyncio.create_task(asyncio.sleep(0))
        for _ in range(3):
            assert (await remote.generate(ask(1))).finish == "abort"
        assert other.done()

    served(scenario)


def test_an_engine_that_does_not_answer_in_time_counts_as_gone():
    async def scenario(remote, handle, engine, lost):
        handle.hangs = True
        with pytest.raises(ActorDiedError, match=r"it hangs: suspend was not answered within 0\.1"):
            await remote.suspend()

    served(scenario, answer_s=0.1)


def test_what_was_asked_of_an_engine_that_is_lost_meanwhile_waits_no_longer():
    async def scenario(remote, handle, engine, lost):
        handle.hangs = True
        asking = asyncio.create_task(remote.evict())
        await asyncio.sleep(0)
        remote.lost(ConnectionError("somebody else found out"))
        for work in (asking, remote.resume()):
            with pytest.raises(ActorDiedError, match=f"engine {ENGINE} is lost"):
                await work

    served(scenario)
