import asyncio

import pytest
from live_parts import STOP, running_proxy, say

from rollart.errors import ConfigError, EngineError, InvariantError
from rollart.inference.driver import EngineDriver, RequestError
from rollart.inference.scripted import ScriptedEngine
from rollart.types import Completion, EngineId, Request, Sampling, TrajectoryId, Version


def ask(session: int, *, turn: int = 0, tokens=(1, 2, 3), max_tokens: int = 8) -> Request:
    return Request(
        session=TrajectoryId(session),
        turn=turn,
        domain="games",
        tokens=tuple(tokens),
        sampling=Sampling(max_tokens=max_tokens),
        stop=(STOP,),
        seed=session,
    )


def as_many_as_asked(request: Request) -> tuple[int, ...]:
    return (7,) * request.sampling.max_tokens


async def until(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


def test_a_request_is_completed_with_what_the_engine_sampled():
    async def run():
        async with running_proxy() as proxy:
            return await proxy.generate(ask(3, turn=2)), proxy.in_flight

    assert asyncio.run(run()) == (
        Completion(
            session=TrajectoryId(3),
            turn=2,
            tokens=(ord("g"), ord("o"), STOP),
            logprobs=(0.0, 0.0, 0.0),
            versions=(Version(0),) * 3,
            finish="stop",
        ),
        0,
    )


def test_each_request_completes_as_soon_as_it_is_done():
    async def run():
        done: list[int] = []
        engine = ScriptedEngine(as_many_as_asked)

        async def one(length: int) -> None:
            completion = await proxy.generate(ask(length, max_tokens=length))
            assert len(completion.tokens) == length
            done.append(length)

        async with running_proxy(engine) as proxy, asyncio.TaskGroup() as tasks:
            for length in (40, 1, 20, 10):
                tasks.create_task(one(length))
        return done, engine.stats()["steps"]

    assert asyncio.run(run()) == ([1, 10, 20, 40], 40)


def test_cancelling_a_request_aborts_it_and_leaves_the_others_alone():
    async def run():
        engine = ScriptedEngine(as_many_as_asked)
        async with running_proxy(engine) as proxy:
            endless = asyncio.create_task(proxy.generate(ask(1, max_tokens=10**6)))
            other = asyncio.create_task(proxy.generate(ask(2, max_tokens=200)))
            await until(lambda: engine.stats()["sampled_tokens"] > 0)
            endless.cancel()
            assert len((await other).tokens) == 200
            await asyncio.wait({endless})
            await until(lambda: not engine.busy)
            again = await proxy.generate(ask(1, turn=1, max_tokens=2))
            return endless.cancelled(), again.tokens, proxy.in_flight

    assert asyncio.run(run()) == (True, (7, 7), 0)


def test_who_cancels_a_request_is_told_what_it_had_sampled():
    async def run():
        engine = ScriptedEngine(as_many_as_asked)
        told = []
        async with running_proxy(engine) as proxy:
            endless = asyncio.create_task(proxy.generate(ask(1, max_tokens=10**6), told.append))
            await until(lambda: engine.stats()["sampled_tokens"] > 0)
            endless.cancel()
            await asyncio.wait({endless})
            await until(lambda: told)
            return told, engine.stats()["sampled_tokens"]

    told, sampled = asyncio.run(run())
    assert told == [sampled]


def test_a_request_that_completes_while_it_is_cancelled_was_sampled_too():
    async def run(passes: int):
        engine = ScriptedEngine(as_many_as_asked)
        told, done = [], 0
        async with running_proxy(engine) as proxy:
            asking = asyncio.create_task(proxy.generate(ask(1, max_tokens=3), told.append))
            for _ in range(passes):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait({asking})
            done = 0 if asking.cancelled() else len(asking.result().tokens)
            await proxy.generate(ask(2, max_tokens=1))
            await until(lambda: not engine.busy)
        return done + sum(told), engine.stats()["sampled_tokens"] - 1

    for passes in range(1, 40):
        counted, sampled = asyncio.run(run(passes))
        assert counted == sampled


def test_a_request_cancelled_before_the_engine_saw_it_is_aborted_too():
    async def run():
        engine = ScriptedEngine(as_many_as_asked)
        async with running_proxy(engine) as proxy:
            waiting = asyncio.create_task(proxy.generate(ask(1, max_tokens=10**6)))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait({waiting})
            await proxy.generate(ask(2, max_tokens=1))
            await until(lambda: not engine.busy)
            return engine.busy, proxy.in_flight

    assert asyncio.run(run()) == (False, 0)


def test_a_suspended_engine_takes_no_step_and_keeps_what_is_in_flight():
    async def run():
        engine = ScriptedEngine(as_many_as_asked)
        async with running_proxy(engine) as proxy:
            first = asyncio.create_task(proxy.generate(ask(1, max_tokens=500)))
            await until(lambda: engine.stats()["sampled_tokens"] > 0)
            await proxy.suspend()
            sampled = engine.stats()["sampled_tokens"]
            late = asyncio.create_task(proxy.generate(ask(2, max_tokens=1)))
            for _ in range(50):
                await asyncio.sleep(0.001)
            assert engine.stats()["sampled_tokens"] == sampled
            assert (proxy.in_flight, first.done(), late.done()) == (2, False, False)
            await proxy.resume()
            return len((await first).tokens), len((await late).tokens)

    assert asyncio.run(run()) == (500, 1)


def test_an_update_fetches_its_version_and_turns_in_flight_go_on_under_it():
    async def run():
        fetched: list[Version] = []
        engine = ScriptedEngine(as_many_as_asked)

        def fetch(version: Version):
            fetched.append(version)
            return {}

        async with running_proxy(engine, fetch=fetch) as proxy:
            turn = asyncio.create_task(proxy.generate(ask(1, max_tokens=500)))
            await until(lambda: engine.stats()["sampled_tokens"] > 2)
            await proxy.suspend()
            took = await proxy.update(Version(5))
            assert (proxy.version, turn.done()) == (5, False)
            assert took["pull_s"] == took["exposed_s"] >= 0
            assert sorted(took) == ["exposed_s", "load_s", "pull_s"]
            assert await proxy.update(Version(5)) == {}
            await proxy.resume()
            return fetched, await turn

    fetched, completion = asyncio.run(run())
    assert fetched == [Version(5)]
    assert len(completion.tokens) == 500
    assert completion.versions == tuple(sorted(completion.versions))
    assert set(completion.versions) == {Version(0), Version(5)}


def test_a_version_that_is_not_in_the_store_is_an_error_of_the_update():
    async def run():
        def fetch(version: Version):
            raise KeyError(version)

        async with running_proxy(fetch=fetch) as proxy:
            await proxy.suspend()
            with pytest.raises(KeyError):
                await proxy.update(Version(9))
            await proxy.resume()
            return (await proxy.generate(ask(1))).versions, proxy.version

    assert asyncio.run(run()) == ((Version(0),) * 3, Version(0))


def test_an_engine_without_a_weight_store_loads_nothing():
    async def run():
        driver = EngineDriver(ScriptedEngine(say("go")), id=EngineId("e"))
        driving = asyncio.create_task(driver.run())
        await driver.suspend()
        with pytest.raises(InvariantError, match="engine e has no weight store to load 1 from"):
            await driver.update(Version(1))
        driving.cancel()

    asyncio.run(run())


def test_a_forgotten_session_leaves_no_prefix_behind():
    async def run(*, forget: bool):
        engine = ScriptedEngine(say("go"))
        async with running_proxy(engine) as proxy:
            await proxy.generate(ask(1, tokens=range(1, 11)))
            if forget:
                proxy.forget(TrajectoryId(1))
            await proxy.generate(ask(1, turn=1, tokens=range(1, 21)))
        return engine.stats()["reused_tokens"]

    assert asyncio.run(run(forget=False)) == 12
    assert asyncio.run(run(forget=True)) == 0


def test_an_engine_that_breaks_fails_its_requests_at_once():
    def broken(_request: Request):
        raise InvariantError("the script is wrong")

    async def run():
        async with running_proxy(ScriptedEngine(broken)) as proxy:
            async with asyncio.timeout(60):
                with pytest.raises(InvariantError, match="the script is wrong"):
                    await proxy.generate(ask(1))
                with pytest.raises(InvariantError, match="the script is wrong"):
                    await proxy.generate(ask(2))
            return proxy.in_flight

    assert asyncio.run(run()) == 0


def test_what_a_step_raises_is_told_with_where_and_what_to_do():
    def starved(_request: Request):
        raise RuntimeError("not enough memory")

    async def run():
        async with running_proxy(ScriptedEngine(starved)) as proxy, asyncio.timeout(60):
            with pytest.raises(EngineError) as caught:
                await proxy.generate(ask(1))
            return str(caught.value)

    said = asyncio.run(run())
    assert "failed in a step: RuntimeError: not enough memory (test_driver.py:" in said
    assert "lower engine.torch.rows" in said


def test_a_request_the_engine_refuses_fails_alone():
    class Picky(ScriptedEngine):
        def add(self, request):
            if request.session == 1:
                raise ConfigError("engine.torch.max_length", 8, "the prompt is longer")
            super().add(request)

    async def play():
        async with running_proxy(Picky()) as proxy:
            bad = asyncio.ensure_future(proxy.generate(ask(1)))
            good = await proxy.generate(ask(2))
            with pytest.raises(RequestError, match="the prompt is longer"):
                await bad
            return good.session

    assert asyncio.run(play()) == 2


def test_evicted_requests_come_back_with_what_they_have_and_the_engine_is_left_empty():
    async def run():
        engine = ScriptedEngine(as_many_as_asked)
        async with running_proxy(engine) as proxy:
            begun = asyncio.create_task(proxy.generate(ask(1, turn=4, max_tokens=10**6)))
            dropped = asyncio.create_task(proxy.generate(ask(2, max_tokens=10**6)))
            await until(lambda: engine.stats()["sampled_tokens"] > 4)
            dropped.cancel()
            await asyncio.wait({dropped})
            await proxy.suspend()
            new = asyncio.create_task(proxy.generate(ask(3, turn=1)))
            await asyncio.sleep(0)
            await proxy.evict()
            partial, untouched = await begun, await new
            assert (partial.finish, partial.turn) == ("abort", 4)
            assert len(partial.tokens) == len(partial.logprobs) == len(partial.versions) > 0
            assert untouched == Completion(
                session=TrajectoryId(3), turn=1, tokens=(), logprobs=(), versions=(), finish="abort"
            )
            assert (engine.busy, proxy.in_flight) == (False, 0)
            await proxy.resume()
            return await proxy.generate(ask(1, turn=4, max_tokens=2))

    assert asyncio.run(run()).finish == "length"


def test_weights_an_engine_holds_are_not_fetched_again():
    async def run():
        fetched: list[Version] = []
        engine = ScriptedEngine(say("go"), version=Version(3))
        async with running_proxy(engine, fetch=lambda v: fetched.append(v) or {}) as proxy:
            await proxy.suspend()
            await proxy.update(Version(3))
            await proxy.update(Version(4))
            return fetched

    assert asyncio.run(run()) == [4]
