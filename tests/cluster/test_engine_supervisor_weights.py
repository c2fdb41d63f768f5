"""A run over engines elsewhere: one that cannot load weights does not end it, while others can."""

import asyncio

import pytest
from inline_handle import InlineHandle
from live_parts import (
    KEEP,
    InlineCountdown,
    Live,
    make_access,
    make_setup,
    make_task,
    say,
)
from scorers import in_thread

from rollart.clock import SystemClock
from rollart.cluster.engine_server import EngineServer
from rollart.cluster.engine_supervisor import (
    EngineSupervisor,
    EngineSupervisorOptions,
    SpawnedEngine,
)
from rollart.cluster.local_host import EmbeddedHost
from rollart.cluster.trainer_supervisor import TrainerClient
from rollart.control.rules import Batching, Rules
from rollart.control.scheduler import Scheduler
from rollart.errors import ActorError, PrunedError, StorageError
from rollart.events import EngineJoined, EngineLost
from rollart.inference.driver import EngineDriver
from rollart.inference.scripted import ScriptedEngine
from rollart.rollout.buffer import Buffer
from rollart.rollout.controller import Controller, Parts
from rollart.rollout.env_worker import Ends, EnvWorker
from rollart.training.batch import encode
from rollart.weights.store import open_store

RULES = Rules(steps=4, batching=Batching(groups_per_step=1, group_size=2))


class Worker(EnvWorker):
    """Learns of engines as they are opened."""

    fleet: EngineSupervisor

    def open_engine(self, engine, pool, *, is_guest):
        self._access.engines.add(engine, self.fleet.generators[engine])
        super().open_engine(engine, pool, is_guest=is_guest)


class Site:
    """Engines in a fleet of this process; `fetch` says what each gets of a version."""

    def __init__(self, tmp_path, *, engines="ab", fetch=lambda _site, _engine, _version: None):
        self.events = []
        self.warnings = []
        self.handles = []
        self._place = str(tmp_path)
        self._engines = engines
        self._fetch = fetch

    def run(self):
        asyncio.run(self._run())
        return self

    async def _run(self):
        self.store = open_store("memory", self._place, KEEP)
        self.scheduler = scheduler = Scheduler(RULES)
        controller = Controller(
            scheduler, clock=SystemClock(), observers=[lambda _now, event, _c: self._note(event)]
        )
        options = EngineSupervisorOptions(
            spawn=self._spawn,
            release=lambda _engine: None,
            is_better=lambda _place, _engine: False,
            newest=lambda: scheduler.weights.published,
            answer_s=20.0,
            warn=self.warnings.append,
        )
        self.fleet = fleet = EngineSupervisor(options, engines=self._engines)
        await fleet.start()
        fleet.post = controller.post
        host = EmbeddedHost()
        try:
            handle = await host.spawn("live_parts:CountingTrainer", {"store": self._place})
            async with asyncio.timeout(20):
                parts = self._parts(controller, TrainerClient(handle))
                await controller.run(parts, engines=fleet.infos, slots=4)
        finally:
            await fleet.close()
            for handle in self.handles:
                await handle.target.close()
            await host.close()

    def _parts(self, controller, trainer):
        buffer = Buffer(self.scheduler.is_fresh)
        access = make_access(dict(self.fleet.generators))
        worker = Worker(
            setups={"countdown": make_setup(lambda _slot: InlineCountdown())},
            access=access,
            tasks=make_task,
            ends=Ends(put=buffer.put, post=controller.post),
        )
        worker.fleet = self.fleet
        self.fleet.close_engine = access.engines.close
        return Parts(
            worker=worker,
            generators=self.fleet.generators,
            trainer=trainer,
            buffer=buffer,
            encode=lambda groups: encode(groups, temperature=1.0),
            score=in_thread(lambda trajectory: trajectory.reward),
            on_train=lambda _groups: None,
            after_event=lambda _event, _tasks: None,
            lose_engine=self.fleet.lose,
        )

    async def _spawn(self, _place, engine):
        def fetch(version):
            self._fetch(self, engine, version)
            return self.store.fetch(version)

        proxy = EngineDriver(ScriptedEngine(say("go")), id=engine, fetch=fetch)
        self.handles.append(InlineHandle(EngineServer(proxy)))
        return SpawnedEngine(handle=self.handles[-1], pool="local")

    def _note(self, event):
        if isinstance(event, EngineLost | EngineJoined):
            self.events.append(event)

    @property
    def lost(self):
        return {each.engine: each.message for each in self.events if isinstance(each, EngineLost)}


def test_a_run_goes_on_with_the_others_when_one_engine_cannot_load_weights(tmp_path):
    def fetch(_site, engine, version):
        if (engine, version) == ("a", 1):
            raise StorageError("the link is down")

    site = Site(tmp_path, fetch=fetch).run()
    assert site.lost == {"a": "it cannot load version 1: the link is down"}
    assert site.scheduler.optimizer == 4


def test_what_an_engine_raises_as_it_loads_is_its_own_loss_too(tmp_path):
    def fetch(_site, engine, version):
        if (engine, version) == ("b", 2):
            raise ActorError("it raised RuntimeError: no memory\nTraceback: a long story")

    site = Site(tmp_path, fetch=fetch).run()
    assert site.lost == {"b": "it cannot load version 2: it raised RuntimeError: no memory"}


def test_a_run_ends_with_the_reason_when_no_engine_can_load_weights(tmp_path):
    def fetch(_site, _engine, version):
        if version == 2:
            raise StorageError("the store is gone")

    site = Site(tmp_path, fetch=fetch)
    with pytest.raises(StorageError, match=r"^the store is gone$"):
        site.run()
    assert len(site.lost) <= 1
    assert site.scheduler.optimizer >= 2


def test_the_only_engine_that_cannot_load_weights_ends_the_run_with_the_reason(tmp_path):
    def fetch(_site, _engine, _version):
        raise StorageError("the store is gone")

    site = Site(tmp_path, engines="a", fetch=fetch)
    with pytest.raises(StorageError, match=r"^the store is gone$"):
        site.run()
    assert site.events == []


def test_an_only_engine_that_asked_too_late_is_made_again_with_the_newest_weights(tmp_path):
    def fetch(_site, engine, version):
        if (engine, version) == ("a", 2):
            raise PrunedError("version 2 is no longer there")

    site = Site(tmp_path, engines="a", fetch=fetch).run()
    assert site.lost == {"a": "it cannot load version 2: version 2 is no longer there"}
    assert [event.engine.id for event in site.events[1:]] == ["a.1"]
    assert site.scheduler.optimizer == 4


def test_an_engine_of_this_process_that_cannot_load_weights_ends_the_run_with_the_reason(tmp_path):
    class Deaf(ScriptedEngine):
        def update(self, version, weights, *, keep_kv=False):
            raise StorageError("the store is gone")

    live = Live(
        rules=RULES,
        directory=tmp_path,
        make=lambda _slot: InlineCountdown(),
        engine=Deaf(say("go")),
    )
    with pytest.raises(StorageError, match=r"^the store is gone$"):
        live.run()
