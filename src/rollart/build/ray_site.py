"""A run on a Ray cluster: the same parts as on one machine, each where its pool is.

    this process: Controller, Buffer, evaluation      ─┬─ EnvActor … ──► EngineActor …
                                                       └─ TorchTrainer ranks ──► weight store ──┘

Environment workers ask engines directly. What dies is made again: an engine in its berth, an
environment worker in its place, the trainer from its own last save.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from rollart.build.assembly import open_weights
from rollart.build.cluster_checks import check_cluster, cluster_gone
from rollart.build.parts import evaluator_over
from rollart.build.ray_ranks import RANK, spawn_trainer
from rollart.build.resources import Resources
from rollart.build.site import Site
from rollart.clock import SystemClock
from rollart.config import Config, dump_toml
from rollart.config.placing import engine_places, environment_place
from rollart.control.routing import Router
from rollart.models.loading import load_tokenizer
from rollart.models.renderer import ChatRenderer
from rollart.on_ray.host import RayHost
from rollart.on_ray.placement import on_node
from rollart.on_ray.session import connected, head_address, here, is_there, nodes
from rollart.ports import Generator, Handle
from rollart.runtime.buffer import Buffer
from rollart.runtime.controller import Controller, Rollout
from rollart.runtime.engine_fleet import Berth, EngineFleet, Ground, Spawned
from rollart.runtime.env_manager import Setup
from rollart.runtime.env_worker import Ends
from rollart.runtime.evaluation import Evaluator
from rollart.runtime.host import thread_env
from rollart.runtime.lasting_trainer import LastingTrainer
from rollart.runtime.remote_workers import RemoteEnvWorkers
from rollart.runtime.switchboard import Switchboard
from rollart.types import EngineId, EngineInfo, Json, Version

ENGINE = "rollart.build.actors:EngineActor"
ENVIRONMENTS = "rollart.build.actors:EnvActor"
_SAVE_EVERY = 10
"""Steps the trainer makes between two saves of its own."""
_LEAST_WORKERS = 2
_LOOKS = 3
"""Looks in a row at which nobody must answer at the head before the cluster counts as gone."""

Warn = Callable[[str], None]


@asynccontextmanager
async def open_ray(
    config: Config,
    *,
    model: Path,
    start: Path,
    version: Version,
    directory: Path,
    warn: Warn,
) -> AsyncGenerator[Site]:
    """Open a cluster: the trainer begins with `model`, the engines with `start`'s weights."""
    async with AsyncExitStack() as stack:
        stack.enter_context(connected(config.ray.address))
        _, opening = stack.enter_context(open_weights(config))
        site = RaySite(config, model=model, start=start, version=version, warn=warn)
        site.prepare(directory, opening)
        stack.push_async_callback(site.close)
        await site.open()
        yield site


class RaySite:
    """Engines, environment workers and trainer on a cluster."""

    def __init__(
        self, config: Config, *, model: Path, start: Path, version: Version, warn: Warn
    ) -> None:
        self._config = config
        self._text = dump_toml(config)
        self._model = model
        self._start = start
        self._version = version
        self._warn = warn
        self._newest: Callable[[], Version] = lambda: version
        self._host = RayHost(env=thread_env(1))
        self._rollout: _Rollout | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def prepare(self, directory: Path, opening: Mapping[str, Json]) -> None:
        """Take where the run is written and how the weight store is opened; bind nothing yet."""
        config, seen = self._config, nodes()
        check_cluster(config, seen)
        self._head = head_address()
        self._opening = dict(opening)
        self._directory = directory
        self._resources = Resources(config, directory, seen)
        self._cpu_nodes = sum("CPU" in node.resources for node in seen)
        weight_bytes = sum(file.stat().st_size for file in self._start.glob("*.safetensors"))
        self._places = engine_places(config, weight_bytes=weight_bytes)
        ground = Ground(
            spawn=self._spawn_engine,
            release=self._resources.release,
            better=self._resources.is_better,
            newest=self._newest_version,
            warn=self._warn,
        )
        self._fleet = EngineFleet(ground, berths=[Berth(name=name) for name in self._places])
        self._trainer = LastingTrainer(
            self._spawn_trainer,
            directory=directory / "trainer",
            save_every=_SAVE_EVERY,
            warn=self._warn,
        )
        rule = config.routing if config.mode.affinity else replace(config.routing, affinity={})
        self._switchboard = Switchboard(
            Router(rule, engines=()), generators={}, now=SystemClock().now
        )

    async def open(self) -> None:
        """Make the engines and begin to make the trainer."""
        self._starting = asyncio.create_task(self._trainer.start())
        await self._fleet.start()
        for info in self._fleet.infos:
            self._switchboard.add(info.id, self._fleet.generators[info.id])
            self._switchboard.open(info.id, info.pool)

    @property
    def infos(self) -> tuple[EngineInfo, ...]:
        """The engines there are."""
        return self._fleet.infos

    @property
    def generators(self) -> Mapping[EngineId, Generator]:
        """The engines by id, as they come and go."""
        return self._fleet.generators

    async def trainer(self) -> Handle:
        """Return the trainer, once it is made."""
        await self._starting
        return self._trainer

    def make_evaluator(self, setups: Mapping[str, Setup]) -> Evaluator:
        """Return what plays held-out episodes from this process on the engines."""
        renderer = ChatRenderer(load_tokenizer(self._start))
        return evaluator_over(
            self._config, setups, renderer=renderer, switchboard=self._switchboard
        )

    async def make_rollout(
        self, setups: Mapping[str, Setup], *, controller: Controller, buffer: Buffer
    ) -> Rollout:
        """Return what runs attempts on the cluster and reports to the controller."""
        del setups  # every worker makes its own
        self._newest = lambda: controller.scheduler.serving.published
        is_lockstep = self._config.mode.lockstep
        rollout = _Rollout(
            self._spawn_environments,
            count=1 if is_lockstep else self._worker_count(),
            ends=Ends(put=buffer.put, post=controller.post),
            handle_of=self._fleet.handle_of,
            on_lost_engine=self._fleet.lose,
            warn=self._warn,
            give_up=controller.fail,
            is_lockstep=is_lockstep,
        )
        rollout.local, rollout.generators = self._switchboard, self._fleet.generators
        await rollout.start()
        for info in self._fleet.infos:
            rollout.open_engine(info.id, info.pool, is_guest=False)
        self._rollout = rollout
        self._fleet.post = controller.post
        self._fleet.close_engine = lambda engine: rollout.close_engine(engine, is_lost=True)
        self._tasks.append(asyncio.create_task(self._watch_cluster(controller)))
        return rollout

    def lose_engine(self, engine: EngineId, message: str) -> None:
        """Take note that an engine is gone."""
        self._fleet.lose(engine, message)

    async def stats(self) -> dict[str, dict[str, float]]:
        """Return the counters of each engine."""
        engines = self._fleet.present.items()
        return {id_: await engine.handle.call("stats") for id_, engine in engines}

    async def close(self) -> None:
        """End everything on the cluster that belongs to the run."""
        tasks = [*self._tasks, self._starting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        with contextlib.suppress(Exception):
            await self._fleet.close()
        if self._rollout is not None:
            self._rollout.close()
        if is_there(self._head):  # nobody answers where the cluster is gone
            with contextlib.suppress(Exception):
                await self._trainer.close()
            await self._host.close()

    def _newest_version(self) -> Version:
        return self._newest()

    def _worker_count(self) -> int:
        return self._config.ray.environment_workers or max(_LEAST_WORKERS, self._cpu_nodes)

    async def _watch_cluster(self, controller: Controller) -> None:
        """Look at the cluster now and then, and move what can be where it belongs."""
        silent = 0
        while silent < _LOOKS:
            await asyncio.sleep(self._config.ray.restart_s)
            if not await asyncio.to_thread(is_there, self._head):
                silent += 1
                continue
            silent = 0
            try:
                lost = self._resources.observe(await asyncio.to_thread(nodes))
                await self._fleet.mend()
            except Exception as error:
                self._warn(f"looking at the cluster failed: {type(error).__name__}: {error}")
                continue
            if any(worker.startswith(RANK) for worker in lost):
                self._tasks.append(asyncio.create_task(self._remake_trainer()))
        controller.fail(cluster_gone(self._head, self._directory))

    async def _spawn_engine(self, berth: str) -> Spawned:
        start = self._start if self._start.exists() else self._model
        binding = self._resources.bind(berth, self._places[EngineId(berth)])
        options: dict[str, Json] = {
            "config": self._text,
            "name": berth,
            "model": str(start),
            "version": int(self._version) if start == self._start else 0,
            "store": self._opening,
            "threads": 1,
        }
        handle = await self._host.spawn(ENGINE, options, asked=self._resources.asked(binding))
        return Spawned(handle=handle, pool=binding.actual)

    async def _spawn_environments(self, number: int) -> Handle:
        name = f"environments-{number}"
        place = environment_place(self._config)
        asked = on_node(here(), resources={}, cpus=0)
        if place is not None:
            asked = self._resources.asked(self._resources.bind(name, place))
        options: dict[str, Json] = {"config": self._text, "name": name, "model": str(self._model)}
        return await self._host.spawn(ENVIRONMENTS, options, asked=asked)

    async def _spawn_trainer(self) -> Handle:
        options: dict[str, Json] = {"model": str(self._model), "store": self._opening}
        return await spawn_trainer(self._config, self._host, self._resources, options=options)

    async def _remake_trainer(self) -> None:
        with contextlib.suppress(Exception):  # the next call of it tries again and tells why
            await self._trainer.remake()


class _Rollout(RemoteEnvWorkers):
    """Opens and closes engines for evaluation in this process too."""

    local: Switchboard
    generators: Mapping[EngineId, Generator]

    def open_engine(self, engine: EngineId, pool: str, *, is_guest: bool) -> None:
        """Let an engine take requests, from everywhere."""
        super().open_engine(engine, pool, is_guest=is_guest)
        if self.has_engine(engine) and not self.local.router.is_open(engine):
            self.local.add(engine, self.generators[engine])
            self.local.open(engine, pool, is_guest=is_guest)

    def close_engine(self, engine: EngineId, *, is_lost: bool = False) -> None:
        """Send an engine no further request, from anywhere."""
        super().close_engine(engine, is_lost=is_lost)
        self.local.close(engine)
