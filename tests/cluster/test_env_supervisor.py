"""Environment workers elsewhere: every launch is answered once, whatever becomes of a worker."""

import asyncio
from dataclasses import replace

import pytest
from conditions import BOUND_S, until
from inline_handle import InlineHandle
from live_parts import ENGINE, Countdown, LetterRenderer, make_setup, make_task, say

from rollart.clock import SystemClock
from rollart.cluster.engine_server import EngineServer
from rollart.cluster.env_actor import EnvServer
from rollart.cluster.env_supervisor import EnvSupervisor, EnvSupervisorOptions
from rollart.cluster.supervisor import RestartPolicy
from rollart.control.routing import Router, Routing
from rollart.events import Launch, TrajectoryCancelled, TrajectoryFailed, TrajectoryFinished
from rollart.inference.driver import EngineDriver
from rollart.inference.scripted import ScriptedEngine
from rollart.rollout.barrier import LockStepBarrier, NoBarrier
from rollart.rollout.engine_client import EngineClient
from rollart.rollout.env_manager import Access
from rollart.rollout.env_worker import Ends, EnvWorker
from rollart.types import Trajectory


class Held(Countdown):
    """Steps when the test lets it."""

    def __init__(self, crew):
        super().__init__()
        self.crew = crew

    async def reset(self, seed, task):
        return super().reset(seed, task)

    async def step(self, action):
        self.crew.steps += 1
        await self.crew.door.wait()
        return super().step(action)


class Crew:
    """Workers over one engine, what they told, and how they die."""

    def __init__(self, *, count=2, spares=0, is_lockstep=False, first_rest_s=0.5):
        self.told = []
        self.warnings = []
        self.given_up = []
        self.lost_engines = []
        self.handles = []
        self.failing_spawns = 0
        self.door = asyncio.Event()
        self.door.set()
        self.may_spawn = asyncio.Event()
        self.may_spawn.set()
        self.engine_handles = {}
        self.told_engines = set()
        self.gate = LockStepBarrier if is_lockstep else NoBarrier
        self.away = set()
        self.names = []
        self.steps = 0
        self.asked = []
        self.released = []
        self.unspawned = []
        options = EnvSupervisorOptions(
            spawn=self.spawn,
            release=self.released.append,
            leave=self.leave,
            is_better=lambda name: name in self.away,
            warn=self.warnings.append,
            give_up=self.given_up.append,
            restarts=RestartPolicy(first_rest_s=first_rest_s, tries=10),
        )
        self.workers = EnvSupervisor(
            options,
            count=count,
            spares=spares,
            ends=Ends(put=self.told.append, post=self.told.append),
            handle_of=self.engine_handles.get,
            on_lost_engine=lambda engine, message: self.lost_engines.append(engine),
            is_lockstep=is_lockstep,
        )

    async def spawn(self, name, is_spare):
        assert name.startswith("spare-") == is_spare
        self.asked.append(name)
        try:
            await self.may_spawn.wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.01)  # others go on meanwhile
            self.unspawned.append(name)
            raise
        if self.failing_spawns:
            self.failing_spawns -= 1
            raise OSError("no machine")
        handle = InlineHandle(EnvServer(self.make_worker, name=name))
        self.names.append(name)
        self.handles.append(handle)
        return handle

    def leave(self, name):
        for handle in self.engine_handles.values():
            self.told_engines.add(asyncio.ensure_future(handle.call("leave", name)))

    def make_worker(self, ends):
        board = EngineClient(Router(Routing(), engines=()), generators={}, now=SystemClock().now)
        access = Access(
            renderer=LetterRenderer(),
            engines=board,
            barrier=self.gate(),
            is_fresh=lambda _version: True,
        )
        worker = EnvWorker(
            setups={"countdown": make_setup(lambda _slot: Held(self))},
            access=access,
            tasks=self.task,
            ends=ends,
        )
        return worker, board

    def task(self, index):
        if index == 666:
            raise KeyError("no such task")
        return make_task(index)

    async def add_engine(self, id_=ENGINE, text="go"):
        proxy = EngineDriver(ScriptedEngine(say(text)), id=id_, fetch=lambda _version: {})
        handle = InlineHandle(EngineServer(proxy))
        await handle.call("start")
        self.engine_handles[id_] = handle
        self.workers.open_engine(id_, "local", is_guest=False)
        return handle

    def launch(self, *ids, task=1):
        launches = [
            Launch(id=n, group=0, member=n, attempt=0, task=task, slot=n, seed=n) for n in ids
        ]
        self.workers.launch(launches, None)

    def ends(self):
        """Return how each attempt ended; every one is told of once."""
        ends = {}
        for report in self.told:
            match report:
                case TrajectoryFinished(info=info):
                    assert info.id in {each.id for each in self.records()}
                    key, how = info.id, "finished"
                case TrajectoryFailed(id=id_, failure=failure):
                    key, how = id_, failure.kind
                case TrajectoryCancelled(id=id_):
                    key, how = id_, "cancelled"
                case _:
                    continue
            assert key not in ends
            ends[key] = how
        return ends

    def records(self):
        return [report for report in self.told if isinstance(report, Trajectory)]

    async def hold(self, *ids, **options):
        """Launch attempts and let each wait in its first step until the door is opened."""
        self.door.clear()
        steps = self.steps + len(ids)
        self.launch(*ids, **options)
        await until(lambda: self.steps == steps)

    def requests(self, engine):
        """Return how many requests an engine has."""
        return self.engine_handles[engine].target._proxy.in_flight


def crewed(scenario, **options):
    async def run():
        crew = Crew(**options)
        await crew.workers.start()
        await crew.add_engine()
        await asyncio.wait_for(scenario(crew), 2 * BOUND_S)
        await crew.workers.close()
        for handle in crew.handles:
            await handle.target.close()
        for handle in crew.engine_handles.values():
            await handle.target.close()

    asyncio.run(run())


def test_every_launch_is_answered_once_and_its_record_comes_first():
    async def scenario(crew):
        crew.launch(*range(10))
        await until(lambda: len(crew.ends()) == 10)
        assert crew.ends() == dict.fromkeys(range(10), "finished")
        assert sorted(each.id for each in crew.records()) == list(range(10))
        infos = [each.info for each in crew.told if isinstance(each, TrajectoryFinished)]
        assert [info.served for info in infos] == [{ENGINE: 2}] * 10

    crewed(scenario)


def test_a_cancelled_attempt_says_so():
    async def scenario(crew):
        await crew.hold(0, 1)
        crew.workers.cancel(0)
        crew.workers.cancel(77)
        await until(crew.ends)
        crew.door.set()
        await until(lambda: len(crew.ends()) == 2)
        assert crew.ends() == {0: "cancelled", 1: "finished"}

    crewed(scenario)


def test_what_a_killed_worker_owed_is_answered_as_failed_and_another_takes_its_place():
    async def scenario(crew):
        await crew.hold(0, 1, 2, 3)
        crew.handles[0].kill()
        await until(lambda: len(crew.ends()) == 2)
        crew.door.set()
        await until(lambda: len(crew.ends()) == 4)
        assert crew.ends() == {0: "worker", 2: "worker", 1: "finished", 3: "finished"}
        await until(lambda: len(crew.handles) == 3)
        crew.launch(4, 6)
        await until(lambda: len(crew.ends()) == 6)
        assert (crew.ends()[4], crew.ends()[6]) == ("finished", "finished")
        assert crew.warnings == [
            "environment worker 0 is lost (the actor is gone); starting another"
        ]

    crewed(scenario)


def test_a_successor_is_another_caller_to_the_engines():
    async def scenario(crew):
        for round_ in range(3):
            crew.launch(100 * round_, 100 * round_ + 2)
            await until(lambda done=2 * round_ + 2: len(crew.ends()) == done)
            crew.handles[-1 if round_ else 0].kill()
            await until(lambda made=3 + round_: len(crew.handles) == made)
            await until(lambda: len(crew.workers.processes()) == 2)
        calls = len(crew.engine_handles[ENGINE].calls)
        await asyncio.sleep(0.05)
        assert len(crew.engine_handles[ENGINE].calls) == calls

    crewed(scenario)


def test_engines_decode_no_more_for_a_worker_that_is_gone():
    async def scenario(crew):
        crew.workers.close_engine(ENGINE)
        engine = await crew.add_engine("engine-1", "x" * 100_000)
        server = engine.target
        await engine.call("suspend")
        crew.launch(0, 1)
        await until(lambda: sorted(server._callers) == ["environments-0", "environments-1"])
        await until(lambda: server._proxy.in_flight == 2)
        crew.handles[0].kill()
        await until(lambda: len(crew.handles) == 3)
        await until(lambda: server._proxy.in_flight == 1)
        assert list(server._callers) == ["environments-1"]

    crewed(scenario)


def test_engines_forget_a_worker_that_went_home():
    async def scenario(crew):
        crew.launch(0, 1)
        await until(lambda: len(crew.ends()) == 2)
        crew.away = {"environments-0"}
        assert await crew.workers.move_home()
        server = crew.engine_handles[ENGINE].target
        await until(lambda: list(server._callers) == ["environments-1"])
        crew.launch(2)
        await until(lambda: len(crew.ends()) == 3)
        assert crew.ends()[2] == "finished"

    crewed(scenario)


def test_where_one_worker_cannot_be_made_at_the_start_the_others_are_given_up_first():
    async def run():
        crew = Crew()
        crew.may_spawn.clear()
        wait = crew.workers._options.spawn

        async def spawn(name, is_spare):
            if name == "environments-1":
                raise OSError("no machine")
            return await wait(name, is_spare)

        crew.workers._options = replace(crew.workers._options, spawn=spawn)
        with pytest.raises(OSError, match="no machine"):
            await crew.workers.start()
        assert crew.unspawned == ["environments-0"]

    asyncio.run(run())


def test_when_workers_are_closed_what_was_being_made_has_ended():
    async def scenario(crew):
        crew.may_spawn.clear()
        crew.handles[0].kill()
        await until(lambda: "environments-0.1" in crew.asked)
        await crew.workers.close()
        assert crew.unspawned == ["environments-0.1"]

    crewed(scenario)


def test_while_a_worker_is_being_made_again_its_slots_are_dealt_to_the_others():
    async def scenario(crew):
        crew.may_spawn.clear()
        crew.handles[0].kill()
        await until(lambda: len(crew.workers.processes()) == 1)
        crew.launch(0, 1, 2)
        await until(lambda: len(crew.ends()) == 3)
        assert crew.ends() == dict.fromkeys(range(3), "finished")

    crewed(scenario)


def test_while_no_worker_is_there_a_spare_takes_every_slot_and_gives_them_back():
    async def scenario(crew):
        crew.may_spawn.clear()
        for handle in crew.handles[:2]:
            handle.kill()
        await until(lambda: len(crew.workers.processes()) == 1)
        crew.launch(0, 1, 2)
        await until(lambda: len(crew.ends()) == 3)
        assert crew.ends() == dict.fromkeys(range(3), "finished")
        crew.may_spawn.set()
        await until(lambda: len(crew.workers.processes()) == 3)
        assert crew.names == [
            "environments-0",
            "environments-1",
            "spare-environments-0",
            "environments-0.1",
            "environments-1.1",
        ]
        assert crew.released == ["environments-0", "environments-1"]
        await crew.hold(3, 4)
        crew.handles[2].kill()  # nothing is left with it
        await until(lambda: len(crew.warnings) == 3)
        crew.door.set()
        await until(lambda: len(crew.ends()) == 5)
        assert crew.ends() == dict.fromkeys(range(5), "finished")

    crewed(scenario, spares=1)


def test_a_spare_that_is_gone_is_made_again():
    async def scenario(crew):
        crew.handles[2].kill()
        await until(lambda: len(crew.handles) == 4)
        assert crew.names[3] == "spare-environments-0.1"
        assert crew.warnings == [
            "spare environment worker 0 is lost (the actor is gone); starting another"
        ]

    crewed(scenario, spares=1)


def test_a_worker_goes_home_without_losing_what_it_runs():
    async def scenario(crew):
        await crew.hold(0, 1)
        crew.away = {"environments-0"}
        assert await crew.workers.move_home()
        assert crew.names[2:] == ["environments-0.1"]
        await crew.hold(2)
        assert not crew.handles[0].dead.is_set()
        crew.workers.cancel(0)
        crew.door.set()
        await until(lambda: len(crew.ends()) == 3)
        assert crew.ends() == {0: "cancelled", 1: "finished", 2: "finished"}
        await until(crew.handles[0].dead.is_set)
        assert (crew.released, len(crew.workers.processes())) == (["environments-0"], 2)
        crew.launch(4)
        await until(lambda: len(crew.ends()) == 4)
        assert await crew.workers.move_home()
        assert len(crew.handles) == 3
        assert crew.warnings == ["environment worker 0 moves to its preferred pool"]

    crewed(scenario)


def test_a_worker_that_dies_after_it_was_followed_is_not_made_again():
    async def scenario(crew):
        await crew.hold(0)
        crew.away = {"environments-0"}
        await crew.workers.move_home()
        crew.handles[0].kill()
        await until(crew.ends)
        assert crew.ends() == {0: "worker"}
        await asyncio.sleep(0.02)
        assert (len(crew.handles), crew.released) == (3, ["environments-0"])

    crewed(scenario)


def test_a_worker_that_cannot_go_home_stays_and_one_that_died_meanwhile_is_made_again():
    async def scenario(crew):
        crew.away = {"environments-0"}
        crew.failing_spawns = 1
        crew.may_spawn.clear()
        mending = asyncio.create_task(crew.workers.move_home())
        await until(lambda: "environments-0.1" in crew.asked)
        crew.handles[0].kill()
        await until(lambda: len(crew.workers.processes()) == 1)
        crew.away = set()
        crew.may_spawn.set()
        assert not await mending
        assert crew.warnings[1:] == [
            "environment worker 0 is lost (the actor is gone); starting another",
            "environment worker 0 cannot be made now: no machine",
        ]
        await until(lambda: len(crew.workers.processes()) == 2)
        assert crew.names[2:] == ["environments-0.2"]
        crew.away, crew.failing_spawns = {"environments-1"}, 1
        assert not await crew.workers.move_home()
        crew.launch(1)
        await until(crew.ends)
        assert crew.ends() == {1: "finished"}
        assert crew.released == ["environments-0", "environments-0.1", "environments-1.1"]

    crewed(scenario)


def test_launches_wait_while_there_is_no_worker():
    async def scenario(crew):
        crew.may_spawn.clear()
        for handle in crew.handles:
            handle.kill()
        await until(lambda: len(crew.workers.processes()) == 0)
        crew.launch(0, 1, 2)
        crew.workers.cancel(1)
        await until(crew.ends)
        assert crew.ends() == {1: "cancelled"}
        crew.may_spawn.set()
        await until(lambda: len(crew.ends()) == 3)
        assert crew.ends() == {0: "finished", 1: "cancelled", 2: "finished"}

    crewed(scenario)


def test_a_worker_that_cannot_be_made_is_tried_for_again():
    async def scenario(crew):
        crew.failing_spawns = 1
        crew.handles[0].kill()
        await until(lambda: len(crew.handles) == 3)
        assert crew.warnings[1:] == ["environment worker 0 cannot be made now: no machine"]

    crewed(scenario)


def test_when_no_worker_is_left_and_none_can_be_made_the_run_is_given_up():
    async def scenario(crew):
        crew.failing_spawns = 99
        crew.handles[0].kill()
        await until(lambda: crew.given_up)
        message = "environment worker 0 cannot be made: no machine; no other one is running"
        assert [str(error) for error in crew.given_up] == [message]

    crewed(scenario, count=1, first_rest_s=0.001)


def test_an_error_outside_the_attempts_failures_breaks_the_worker_and_says_what_it_was():
    async def scenario(crew):
        await crew.hold(0)
        crew.launch(2, task=666)
        await until(lambda: len(crew.ends()) == 2)
        assert crew.ends() == {0: "worker", 2: "worker"}
        assert "no such task" in crew.warnings[0]
        await until(lambda: len(crew.handles) == 3)
        assert crew.handles[0].dead.is_set()

    crewed(scenario)


def test_an_engine_that_is_lent_again_and_again_serves_each_time():
    async def scenario(crew):
        for number in range(3):
            crew.launch(number)
            await until(lambda done=number + 1: len(crew.ends()) == done)
            crew.workers.close_engine(ENGINE)
            crew.workers.open_engine(ENGINE, "training", is_guest=True)
        assert crew.ends() == dict.fromkeys(range(3), "finished")

    crewed(scenario)


def test_turns_of_a_lost_engine_go_on_in_the_next_one():
    async def scenario(crew):
        crew.workers.close_engine(ENGINE)
        first = await crew.add_engine("engine-1")
        await first.call("suspend")
        crew.launch(0, 1)
        await until(lambda: crew.requests("engine-1") == 2)
        first.kill()
        await until(lambda: len(crew.lost_engines) == 2)
        assert crew.lost_engines == ["engine-1", "engine-1"]
        assert crew.ends() == {}
        await crew.add_engine("engine-2")
        await until(lambda: len(crew.ends()) == 2)
        assert crew.ends() == {0: "finished", 1: "finished"}

    crewed(scenario)


def test_an_engine_shut_as_lost_gives_its_turns_to_another_though_it_would_still_answer():
    async def scenario(crew):
        crew.workers.close_engine(ENGINE)
        stuck = await crew.add_engine("engine-1")
        await stuck.call("suspend")
        crew.launch(0, 1)
        await until(lambda: crew.requests("engine-1") == 2)
        crew.workers.close_engine("engine-1", is_lost=True)
        await crew.add_engine("engine-2")
        await until(lambda: len(crew.ends()) == 2)
        assert crew.ends() == {0: "finished", 1: "finished"}

    crewed(scenario)


def test_an_engine_that_was_lost_before_it_could_be_opened_is_not():
    async def scenario(crew):
        crew.workers.open_engine("engine-9", "local", is_guest=False)
        assert (crew.workers.has_engine("engine-9"), crew.workers.has_engine(ENGINE)) == (
            False,
            True,
        )

    crewed(scenario)


def test_in_lock_step_an_attempt_that_ended_is_left_out_when_that_is_known():
    async def scenario(crew):
        crew.launch(0, 1, 2)
        settled = 0
        while len(crew.ends()) < 3:
            for event in crew.told[settled:]:
                if not isinstance(event, Trajectory):
                    crew.workers.settle(event)
            settled = len(crew.told)
            await asyncio.sleep(0.001)
        assert crew.ends() == dict.fromkeys(range(3), "finished")

    crewed(scenario, count=1, is_lockstep=True)
