"""Engines elsewhere: each end is told once, and another joins with the newest weights."""

import asyncio
from dataclasses import replace

import pytest
from conditions import BOUND_S, until
from inline_handle import InlineHandle
from live_parts import STOP, say

from rollart.cluster import engine_supervisor
from rollart.cluster.engine_server import EngineServer
from rollart.cluster.engine_supervisor import (
    EngineSupervisor,
    EngineSupervisorOptions,
    SpawnedEngine,
)
from rollart.control.routing import Router, Routing
from rollart.errors import ActorDiedError, PrunedError, StorageError
from rollart.events import EngineJoined, EngineLost
from rollart.inference.driver import EngineDriver, RequestError
from rollart.inference.scripted import ScriptedEngine
from rollart.rollout.engine_client import EngineClient
from rollart.types import EngineInfo, Request, Sampling

LOST_A = "engine a is lost (the actor is gone); its turns go elsewhere"


class Dock:
    """Where engines are spawned; a place is away while it is listed so."""

    def __init__(self):
        self.events = []
        self.warnings = []
        self.closed = []
        self.handles = []
        self.released = []
        self.away = set()
        self.newest = 0
        self.refused = 0
        self.missing = set()
        self.pruned = set()
        self.asked = []
        self.unspawned = []
        self.may_spawn = asyncio.Event()
        self.may_spawn.set()
        self.options = EngineSupervisorOptions(
            spawn=self.spawn,
            release=self.released.append,
            is_better=lambda place, _engine: place in self.away and not self.is_full,
            newest=lambda: self.newest,
            answer_s=BOUND_S,
            warn=self.warnings.append,
        )
        self.is_full = False
        self.fleet = EngineSupervisor(self.options, engines="ab")
        self.fleet.close_engine = self.closed.append

    async def spawn(self, place, engine):
        self.asked.append(engine)
        try:
            await self.may_spawn.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)  # others go on meanwhile
            self.unspawned.append(engine)
            raise
        if self.refused:
            self.refused -= 1
            raise OSError("no room")
        if self.is_full:
            self.away.add(place)
        else:
            self.away.discard(place)
        proxy = EngineDriver(ScriptedEngine(say("x" * 100_000)), id=engine, fetch=self.fetch)
        handle = InlineHandle(EngineServer(proxy))
        self.handles.append(handle)
        return SpawnedEngine(handle=handle, pool="elsewhere" if self.is_full else "home")

    def fetch(self, version):
        if version in self.missing:
            raise StorageError(f"version {version} did not arrive")
        if version in self.pruned:
            raise PrunedError(f"version {version} is no longer there")
        return {}

    async def until(self, count):
        await until(lambda: len(self.events) >= count)


async def sampling(handle):
    """Return when an engine has sampled a few tokens."""
    while (await handle.call("stats"))["sampled_tokens"] < 3:
        await asyncio.sleep(0)


def docked(scenario):
    async def run():
        dock = Dock()
        await dock.fleet.start()
        dock.fleet.post = dock.events.append
        try:
            await asyncio.wait_for(scenario(dock, dock.fleet), BOUND_S)
        finally:
            await dock.fleet.close()
            for handle in dock.handles:
                await handle.target.close()

    asyncio.run(run())


def ask(session, *, max_tokens=10**6):
    return Request(
        session=session,
        turn=0,
        domain="games",
        tokens=(1, 2),
        sampling=Sampling(max_tokens=max_tokens),
        stop=(STOP,),
        seed=1,
    )


def run_out():
    raise RuntimeError("out of memory")


def joined(id_, *, pool="home", version=0):
    return EngineJoined(engine=EngineInfo(id=id_, pool=pool, version=version))


def test_a_fleet_starts_with_an_engine_in_every_place():
    async def scenario(dock, fleet):
        assert fleet.infos == (
            EngineInfo(id="a", pool="home", version=0),
            EngineInfo(id="b", pool="home", version=0),
        )
        assert {id_: each["sampled_tokens"] for id_, each in (await fleet.stats()).items()} == {
            "a": 0,
            "b": 0,
        }
        assert fleet.handle_of("b") is dock.handles[1]

    docked(scenario)


def test_a_killed_engine_is_told_of_once_and_another_joins_with_the_newest_weights():
    async def scenario(dock, fleet):
        dock.newest = 3
        asking = asyncio.create_task(fleet.generators["a"].generate(ask(1)))
        await sampling(dock.handles[0])
        dock.handles[0].kill()
        assert (await asking).finish == "abort"
        fleet.lose("a", "somebody else found out too")
        await dock.until(2)
        assert dock.events == [
            EngineLost(engine="a", message="the actor is gone"),
            joined("a.1", version=3),
        ]
        assert (dock.closed, dock.released) == (["a"], ["a"])
        assert [info.id for info in fleet.infos] == ["a.1", "b"]
        assert dock.warnings == [LOST_A]

    docked(scenario)


def test_an_engine_that_dies_before_anybody_listens_is_closed_and_replaced_all_the_same():
    async def scenario(dock, fleet):
        router = Router(Routing(), engines=[("a", "home")])
        board = EngineClient(router, generators=fleet.generators, now=lambda: 0.0)
        fleet.post, fleet.close_engine = None, board.close
        dock.handles[0].kill()
        asking = asyncio.create_task(board.complete(ask(1, max_tokens=30)))
        await until(lambda: len(fleet.infos) == 2 and "a.1" in fleet.generators)
        board.add("a.1", fleet.generators["a.1"])
        board.open("a.1", "home")
        assert (await asking).finish == "length"
        assert [info.id for info in fleet.infos] == ["a.1", "b"]
        assert dock.warnings == [LOST_A]

    docked(scenario)


def test_the_counters_of_an_engine_that_is_gone_are_left_out():
    async def scenario(dock, fleet):
        dock.handles[0].kill()
        assert list(await fleet.stats()) == ["b"]

    docked(scenario)


def test_an_engine_that_is_gone_refuses_what_was_already_on_its_way_to_it():
    async def scenario(dock, fleet):
        dock.handles[0].kill()
        await dock.until(1)
        assert fleet.handle_of("a") is None
        with pytest.raises(ActorDiedError):
            await fleet.generators["a"].suspend()

    docked(scenario)


def test_an_engine_that_broke_but_lives_is_ended_before_another_is_made():
    async def scenario(dock, fleet):
        broken = dock.handles[0]
        broken.target._proxy._engine.step = run_out
        asking = asyncio.create_task(fleet.generators["a"].generate(ask(1)))
        await dock.until(2)
        assert (await asking).finish == "abort"
        assert broken.dead.is_set()
        lost, back = dock.events
        assert (lost.engine, back) == ("a", joined("a.1"))
        assert "out of memory" in lost.message

    docked(scenario)


def test_a_place_that_cannot_be_filled_is_tried_again():
    async def scenario(dock, fleet):
        dock.refused = 1
        dock.handles[1].kill()
        await dock.until(2)
        assert dock.events[1] == joined("b.2")
        assert dock.warnings[1:] == ["engine b cannot be made now: no room"]

    docked(scenario)


def test_a_new_engine_whose_weights_do_not_arrive_is_ended_and_tried_again():
    async def scenario(dock, fleet):
        dock.newest, dock.missing = 2, {2}
        dock.handles[1].kill()
        await until(lambda: len(dock.handles) == 3 and dock.handles[2].dead.is_set())
        dock.missing = set()
        await dock.until(2)
        assert dock.events[1] == joined("b.2", version=2)
        assert dock.warnings[1:] == ["engine b cannot be made now: version 2 did not arrive"]

    docked(scenario)


async def load(fleet, engine, version):
    """Do what the controller does with an engine that is to load a version."""
    try:
        await fleet.generators[engine].update(version)
    except ActorDiedError as error:
        fleet.lose(engine, str(error))


def test_an_engine_that_cannot_load_weights_is_made_again_while_another_is_there():
    async def scenario(dock, fleet):
        dock.missing = {1}
        await load(fleet, "a", 1)
        await dock.until(2)
        why = "it cannot load version 1: version 1 did not arrive"
        assert dock.events == [EngineLost(engine="a", message=why), joined("a.1")]
        assert dock.warnings == [f"engine a is lost ({why}); its turns go elsewhere"]
        assert dock.handles[0].dead.is_set()

    docked(scenario)


def test_where_no_engine_can_load_weights_the_last_one_says_why():
    async def scenario(dock, fleet):
        dock.newest, dock.missing = 1, {1}
        answers = await asyncio.gather(
            *(load(fleet, engine, 1) for engine in "ab"), return_exceptions=True
        )
        (error,) = (answer for answer in answers if answer is not None)
        assert (type(error), str(error)) == (StorageError, "version 1 did not arrive")
        assert [info.id for info in fleet.infos] == ["ab"[answers.index(error)]]

    docked(scenario)


def test_one_whose_weights_are_stored_no_longer_is_made_again_with_newer_ones():
    async def scenario(dock, fleet):
        dock.newest, dock.missing, dock.pruned = 1, {1}, {1}
        await load(fleet, "a", 1)
        dock.newest, dock.missing = 3, set()
        await load(fleet, "b", 1)
        await dock.until(4)
        assert {event.engine.id for event in dock.events if isinstance(event, EngineJoined)} == {
            "a.1",
            "b.1",
        }
        assert [info.version for info in fleet.infos] == [3, 3]

    docked(scenario)


def test_an_engine_on_training_hardware_does_not_stand_in_for_one_that_cannot_load():
    async def scenario(dock, _fleet):
        fleet = EngineSupervisor(dock.options, engines="s", lent="t")
        await fleet.start()
        dock.missing = {1}
        with pytest.raises(StorageError, match="version 1 did not arrive"):
            await load(fleet, "s", 1)
        await load(fleet, "t", 1)
        assert fleet.handle_of("t") is None
        await fleet.close()

    docked(scenario)


def test_engines_drop_what_a_caller_that_is_gone_has_asked():
    async def scenario(dock, fleet):
        asking = []
        for number, handle in enumerate(dock.handles):
            await handle.call("suspend")
            call = handle.call("exchange", "gone", 0, [ask(number)])
            asking.append(asyncio.ensure_future(call))
        await until(lambda: all(handle.target._callers for handle in dock.handles))
        dock.handles[1].kill()
        fleet.leave("gone")
        await until(lambda: not dock.handles[0].target._callers)
        assert dock.handles[0].calls.count("leave") == 1
        answers = await asyncio.gather(*asking, return_exceptions=True)
        assert [type(each) for each in answers] == [RequestError, ActorDiedError]

    docked(scenario)


def test_where_one_engine_cannot_be_made_at_the_start_the_others_are_given_up_first():
    async def run():
        dock = Dock()
        wait, dock.may_spawn = dock.spawn, asyncio.Event()

        async def spawn(place, engine):
            if place == "b":
                raise OSError("no room")
            return await wait(place, engine)

        fleet = EngineSupervisor(replace(dock.options, spawn=spawn), engines="ab")
        with pytest.raises(OSError, match="no room"):
            await fleet.start()
        assert (dock.unspawned, sorted(dock.released)) == (["a"], ["a", "b"])
        await fleet.close()

    asyncio.run(run())


def test_when_a_fleet_is_closed_what_it_was_making_has_ended():
    async def scenario(dock, fleet):
        dock.may_spawn.clear()
        dock.handles[0].kill()
        await until(lambda: "a.1" in dock.asked)
        await fleet.close()
        assert (dock.unspawned, dock.released) == (["a.1"], ["a", "a.1"])

    docked(scenario)


def test_an_engine_that_had_to_go_elsewhere_moves_home_with_its_turns_kept():
    async def scenario(dock, fleet):
        dock.is_full = True
        dock.handles[0].kill()
        await dock.until(2)
        assert dock.events[1] == joined("a.1", pool="elsewhere")
        await fleet.move_home()
        assert len(dock.events) == 2
        asking = asyncio.create_task(fleet.generators["a.1"].generate(ask(1)))
        await sampling(dock.handles[2])
        dock.is_full = False
        assert await fleet.move_home()
        completion = await asking
        assert completion.finish == "abort"
        assert len(completion.tokens) >= 3
        assert dock.events[2:] == [
            joined("a.2"),
            EngineLost(engine="a.1", message="it has moved to its own pool"),
        ]
        assert dock.handles[2].dead.is_set()
        assert dock.released == ["a", "a.1"]
        assert [info.id for info in fleet.infos] == ["a.2", "b"]

    docked(scenario)


def test_an_engine_that_hangs_is_ended_and_replaced(monkeypatch):
    monkeypatch.setattr(engine_supervisor, "_WATCH_S", 0.001)
    why = "it hangs: stats was not answered within 0.1 s"

    async def scenario(dock, fleet):
        fleet.generators["a"]._answer_s = 0.1
        asking = asyncio.create_task(fleet.generators["a"].generate(ask(1)))
        dock.handles[0].hangs = True
        await dock.until(2)
        assert (await asking).finish == "abort"
        assert dock.handles[0].dead.is_set()
        assert dock.events == [EngineLost(engine="a", message=why), joined("a.1")]
        assert dock.warnings == [f"engine a is lost ({why}); its turns go elsewhere"]

    docked(scenario)


def test_an_engine_that_hangs_as_it_is_moved_is_ended_all_the_same():
    async def scenario(dock, fleet):
        dock.away = {"a"}
        fleet.generators["a"]._answer_s = 0.1
        dock.handles[0].hangs = True
        assert await fleet.move_home()
        assert dock.handles[0].dead.is_set()
        assert [info.id for info in fleet.infos] == ["a.1", "b"]

    docked(scenario)


@pytest.mark.parametrize("refused", [0, 1])
def test_an_engine_that_dies_while_it_is_moved_is_replaced_all_the_same(refused):
    async def scenario(dock, fleet):
        dock.is_full = True
        dock.handles[0].kill()
        await dock.until(2)
        dock.is_full, dock.refused = False, refused
        dock.may_spawn.clear()
        moving = asyncio.create_task(fleet.move_home())
        await until(lambda: "a.2" in dock.asked)
        dock.handles[2].kill()
        await dock.until(3)
        dock.may_spawn.set()
        assert await moving == (not refused)
        await dock.until(4)
        assert dock.events[2:] == [
            EngineLost(engine="a.1", message="the actor is gone"),
            joined(f"a.{2 + refused}"),
        ]

    docked(scenario)


def test_an_engine_that_cannot_move_goes_on_where_it_is():
    async def scenario(dock, fleet):
        dock.is_full = True
        dock.handles[0].kill()
        await dock.until(2)
        dock.is_full, dock.refused = False, 1
        assert not await fleet.move_home()
        assert ([info.id for info in fleet.infos], len(dock.events)) == (["a.1", "b"], 2)
        assert dock.warnings[-1] == "engine a cannot move: no room"
        assert dock.released == ["a", "a.2"]

    docked(scenario)


def test_an_engine_on_training_hardware_stands_still_until_it_is_lent():
    async def scenario(dock, _fleet):
        lent = EngineSupervisor(dock.options, engines=(), lent="t")
        dock.newest = 2
        await lent.start()
        assert lent.infos == (EngineInfo(id="t", pool="home", version=2, lent=True),)
        engine = lent.generators["t"]
        asking = asyncio.create_task(engine.generate(ask(1, max_tokens=30)))
        await until(lambda: dock.handles[2].target._proxy.in_flight)
        await asyncio.sleep(0.02)
        assert (await dock.handles[2].call("stats"))["sampled_tokens"] == 0
        await engine.resume()
        assert (await asking).finish == "length"
        await lent.close()

    docked(scenario)


def test_after_the_end_nothing_is_replaced():
    async def scenario(dock, fleet):
        await fleet.close()
        dock.handles[0].kill()
        await asyncio.sleep(0.02)
        assert (dock.events, len(dock.handles)) == ([], 2)

    docked(scenario)
