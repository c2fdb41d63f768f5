"""A run on a Ray cluster: the same parts as on one machine, each where its pool is.

    this process: Controller, Buffer, evaluation      ─┬─ EnvActor … ──► EngineActor …
                                                       └─ TorchTrainer ranks ──► weight store ──┘

Environment workers ask engines directly. What dies is made again: an engine in its berth, an
environment worker in its place, the trainer from its own last save.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from secrets import token_hex

from rollart.build.assembly import open_weights
from rollart.build.parts import evaluator_over
from rollart.build.resources import Resources
from rollart.build.site import Site
from rollart.clock import SystemClock
from rollart.config import Config, dump_toml
from rollart.config.placing import Place, engine_places, environment_place, trainer_place
from rollart.control.routing import Router
from rollart.models.loading import load_tokenizer
from rollart.models.renderer import ChatRenderer
from rollart.on_ray.host import RayHandle, RayHost
from rollart.on_ray.session import connected
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
from rollart.training.ranks import TRAINER, RankGroup, RankPlan
from rollart.types import EngineId, EngineInfo, Json, Version

ENGINE = "rollart.build.actors:EngineActor"
ENVIRONMENTS = "rollart.build.actors:EnvActor"
_SAVE_EVERY = 10
"""Steps the trainer makes between two saves of its own."""
_LEAST_WORKERS = 2

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
        config = self._config
        self._opening = dict(opening)
        self._directory = directory
        self._resources = Resources(config, directory)
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
            is_lockstep=is_lockstep,
        )
        rollout.local, rollout.generators = self._switchboard, self._fleet.generators
        await rollout.start()
        for info in self._fleet.infos:
            rollout.open_engine(info.id, info.pool, is_guest=False)
        self._rollout = rollout
        self._fleet.post = controller.post
        self._fleet.close_engine = lambda engine: rollout.close_engine(engine, is_lost=True)
        self._tasks.append(asyncio.create_task(self._watch_cluster()))
        return rollout

    def lose_engine(self, engine: EngineId, message: str) -> None:
        """Take note that an engine is gone."""
        self._fleet.lose(engine, message)

    async def stats(self) -> dict[str, dict[str, float]]:
        """Return the counters of each engine."""
        engines = self._fleet.generators.items()
        return {id_: await engine.handle.call("stats") for id_, engine in engines}

    async def close(self) -> None:
        """End everything on the cluster that belongs to the run."""
        for task in [*self._tasks, self._starting]:
            task.cancel()
        with contextlib.suppress(Exception):
            await self._fleet.close()
        if self._rollout is not None:
            self._rollout.close()
        await self._trainer.close()
        await self._host.close()

    def _newest_version(self) -> Version:
        return self._newest()

    def _worker_count(self) -> int:
        return self._config.ray.environment_workers or _LEAST_WORKERS

    async def _watch_cluster(self) -> None:
        """Look at the cluster now and then, and move what can be where it belongs."""
        while True:
            await asyncio.sleep(self._config.ray.restart_s)
            self._resources.observe()
            await self._fleet.mend()

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
        asked = {}
        if place is not None:
            asked = self._resources.asked(self._resources.bind(name, place))
        options: dict[str, Json] = {"config": self._text, "name": name, "model": str(self._model)}
        return await self._host.spawn(ENVIRONMENTS, options, asked=asked)

    async def _spawn_trainer(self) -> Handle:
        config = self._config
        options: dict[str, Json] = {
            "model": str(self._model),
            "options": json.loads(json.dumps(asdict(config.training))),
            "store": self._opening,
        }
        host = _TrainerHost(self._host, self._resources, trainer_place(config))
        host.env = thread_env(config.training.threads)
        if config.training.ranks == 1:
            return await host.spawn(TRAINER, options, own_process=True)
        meeting = f"file://{(self._directory / f'meeting-{token_hex(4)}').resolve()}"
        plan = RankPlan(options=options, ranks=config.training.ranks, rendezvous=lambda: meeting)
        return await RankGroup.start(host, plan)


class _TrainerHost:
    """Puts each rank it is asked for where training belongs."""

    def __init__(self, host: RayHost, resources: Resources, place: Place) -> None:
        self._host = host
        self._resources = resources
        self._place = place
        self._ranks = 0
        self.env: Mapping[str, str] = {}

    async def spawn(
        self, target: str, options: Mapping[str, Json], *, own_process: bool, pool: str = ""
    ) -> RayHandle:
        """Make a rank."""
        del own_process, pool
        worker = f"trainer-{self._ranks}"
        self._ranks += 1
        binding = self._resources.bind(worker, self._place)
        return await self._host.spawn(
            target, options, asked=self._resources.asked(binding), env=self.env
        )


class _Rollout(RemoteEnvWorkers):
    """Opens and closes engines for evaluation in this process too."""

    local: Switchboard
    generators: Mapping[EngineId, Generator]

    def open_engine(self, engine: EngineId, pool: str, *, is_guest: bool) -> None:
        """Let an engine take requests, from everywhere."""
        super().open_engine(engine, pool, is_guest=is_guest)
        if not self.local.router.is_open(engine):
            self.local.add(engine, self.generators[engine])
            self.local.open(engine, pool, is_guest=is_guest)

    def close_engine(self, engine: EngineId, *, is_lost: bool = False) -> None:
        """Send an engine no further request, from anywhere."""
        super().close_engine(engine, is_lost=is_lost)
        self.local.close(engine)
