"""A run on a Ray cluster: the same parts as on one machine, each where its pool is.

    this process: Controller, Buffer, evaluation      ─┬─ EnvActor … ──► EngineActor …
                                                       └─ TorchTrainer ranks ──► weight store ──┘

Environment workers ask engines directly. An actor that is lost is made again: an engine in its
place, an environment worker in its own, the trainer from its own last save. An actor outside its
preferred pool moves back when that has room. Nothing is lost by this, because each supervisor
answers for what its actors owed (`cluster.supervisor`).
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollart.clock import SystemClock
from rollart.cluster.deployment import Deployment, evaluator_over, open_weights
from rollart.cluster.engine_supervisor import (
    EngineSupervisor,
    EngineSupervisorOptions,
    SpawnedEngine,
)
from rollart.cluster.env_supervisor import EnvSupervisor, EnvSupervisorOptions
from rollart.cluster.ray_session import (
    check_cluster,
    cluster_lost,
    connected,
    guarded,
    head_address,
    is_there,
    nodes,
)
from rollart.cluster.ray_spawner import RANK, Resources, Spawner, SpawnSettings, TrainerMover
from rollart.cluster.trainer_supervisor import TrainerSupervisor
from rollart.config import Config
from rollart.config.checks import open_policy
from rollart.control.routing import Router
from rollart.events import EngineJoined, Event
from rollart.ports import Generator, WeightStore
from rollart.rollout.barrier import NoBarrier
from rollart.rollout.buffer import Buffer
from rollart.rollout.controller import Controller, Rollout
from rollart.rollout.engine_client import EngineClient, ResidentPolicies
from rollart.rollout.env_manager import Access, Setup
from rollart.rollout.env_worker import Ends
from rollart.rollout.evaluation import Evaluator
from rollart.training_ports import RemoteTrainer
from rollart.types import EngineId, EngineInfo, Version
from rollart.weights.prefetch import Direct

_SAVE_EVERY = 10
"""Steps the trainer makes between two saves of its own."""
_LEAST_WORKERS = 2
_LOOK_S = 1.0
"""Seconds between looks at the cluster, when lost workers get new places."""
_LOOKS = 3
"""Looks in a row at which the head must not answer before the cluster counts as lost."""
_ANSWER_S = 60.0
"""Time an engine may take to answer, beyond what weights may take to arrive."""
_REST_S = 30.0
"""Time between two tries to move actors that could not move."""

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
    run: str = "",
) -> AsyncGenerator[Deployment]:
    """Open a cluster: the trainer begins with `model`, the engines with `start`'s weights.

    `run` is the id by which the weight store knows the run.
    """
    async with AsyncExitStack() as stack:
        stack.enter_context(connected(config.ray.address))
        head = head_address()
        stack.enter_context(guarded(head, lambda: str(cluster_lost(head, directory))))
        store, opening = stack.enter_context(open_weights(config, run=run))
        begin = SpawnSettings(model=model, weights=start, version=version, store=opening)
        deployment = RayDeployment(config, begin, store=store, directory=directory, warn=warn)
        stack.push_async_callback(deployment.close)
        await deployment.open()
        yield deployment


class RayDeployment:
    """Engines, environment workers and trainer on a cluster."""

    def __init__(
        self,
        config: Config,
        start: SpawnSettings,
        *,
        store: WeightStore,
        directory: Path,
        warn: Warn,
    ) -> None:
        """Look at the cluster and check that the config can run there; make nothing yet."""
        seen = nodes()
        check_cluster(config, seen)
        self._config = config
        self._start = start
        self._store = store
        self._warn = warn
        self._newest: Callable[[], Version] = lambda: start.version
        self._tasks: set[asyncio.Task[None]] = set()
        self._moving_home: asyncio.Task[None] | None = None
        self._moving: asyncio.Task[None] | None = None
        self._rollout: _Rollout | None = None
        self._head = head_address()
        self._directory = directory
        self._resources = Resources(config, directory, seen)
        cpu_nodes = sum("CPU" in node.resources for node in seen)
        self._workers = config.ray.environment_workers or max(_LEAST_WORKERS, cpu_nodes)
        self._spares = config.ray.spare_workers if len(seen) > 1 else 0
        self._spawner = Spawner(config=config, start=start, resources=self._resources)
        options = EngineSupervisorOptions(
            spawn=self._spawn_engine,
            release=self._resources.release,
            is_better=self._spawner.is_better,
            newest=self._newest_version,
            answer_s=config.weights.wait_s + _ANSWER_S,
            warn=warn,
        )
        self._engines = EngineSupervisor(
            options, engines=self._spawner.engines, lent=self._spawner.lent_engines
        )
        self._trainer = TrainerSupervisor(
            self._spawner.trainer,
            directory=directory / "trainer",
            save_every=_SAVE_EVERY,
            warn=warn,
        )
        self._mover = TrainerMover(self._spawner, self._trainer, warn=warn)
        rule = config.routing if config.mode.affinity else replace(config.routing, affinity={})
        self._client = EngineClient(Router(rule, engines=()), generators={}, now=SystemClock().now)

    async def open(self) -> None:
        """Make the engines and begin to make the trainer."""
        self._starting = asyncio.create_task(self._trainer.start())
        self._engines.post = self._before_rollout
        self._engines.close_engine = self._client.close
        await self._engines.start()

    @property
    def infos(self) -> tuple[EngineInfo, ...]:
        """The engines there are."""
        return self._engines.infos

    @property
    def generators(self) -> Mapping[EngineId, Generator]:
        """The engines by id, as they come and go."""
        return self._engines.generators

    async def trainer(self) -> RemoteTrainer:
        """Return the trainer, once it is made."""
        await self._starting
        return self._trainer

    def make_evaluator(self, setups: Mapping[str, Setup]) -> Evaluator:
        """Return what plays held-out episodes from this process on the engines."""
        start = self._start
        policy = open_policy(self._config)
        access = Access(
            renderer=policy.renderer(start.weights),
            engines=self._client,
            barrier=NoBarrier(),
            policies=ResidentPolicies(
                policy,
                model=start.model,
                start=start.weights,
                version=start.version,
                fetch=Direct(self._store, wait_s=self._config.weights.wait_s).fetch,
            ),
        )
        return evaluator_over(self._config, setups, access)

    async def make_rollout(
        self, setups: Mapping[str, Setup], *, controller: Controller, buffer: Buffer
    ) -> Rollout:
        """Return what runs attempts on the cluster and reports to the controller."""
        del setups  # every worker makes its own
        self._newest = lambda: controller.scheduler.weights.published
        is_lockstep = self._config.mode.lockstep
        options = EnvSupervisorOptions(
            spawn=self._spawner.environments,
            release=self._resources.release,
            leave=self._engines.leave,
            is_better=self._resources.is_better,
            warn=self._warn,
            give_up=controller.fail,
        )
        rollout = _Rollout(
            options,
            count=1 if is_lockstep else self._workers,
            spares=self._spares,
            ends=Ends(put=buffer.put, post=controller.post),
            handle_of=self._engines.handle_of,
            on_lost_engine=self._engines.lose,
            is_lockstep=is_lockstep,
        )
        rollout.local, rollout.generators = self._client, self._engines.generators
        self._rollout = rollout
        await rollout.start()
        await self._client.some_open()  # an engine that was lost is still being made again
        for info in self._engines.infos:
            if not info.lent:
                rollout.open_engine(info.id, info.pool, is_guest=False)
        self._engines.post = controller.post
        self._engines.close_engine = lambda engine: rollout.close_engine(engine, is_lost=True)
        self._run(self._watch_cluster(controller))
        return rollout

    def lose_engine(self, engine: EngineId, message: str) -> None:
        """Record that an engine is lost."""
        self._engines.lose(engine, message)

    async def stats(self) -> dict[str, dict[str, float]]:
        """Return the counters of each engine."""
        return await self._engines.stats()

    async def close(self) -> None:
        """End everything on the cluster that belongs to the run."""
        tasks = [*self._tasks, self._starting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._rollout is not None:
            await self._rollout.close()
        with contextlib.suppress(Exception):
            await self._engines.close()
        if is_there(self._head):  # a lost cluster does not answer
            with contextlib.suppress(Exception):
                await self._trainer.close()
            await self._spawner.host.close()

    def _before_rollout(self, event: Event) -> None:
        """Let an engine that joins serve evaluation, the only caller so far."""
        if isinstance(event, EngineJoined):
            self._open_here(event.engine)

    def _open_here(self, info: EngineInfo) -> None:
        if not info.lent and not self._client.router.is_open(info.id):
            self._client.add(info.id, self._engines.generators[info.id])
            self._client.open(info.id, info.pool)

    def _newest_version(self) -> Version:
        return self._newest()

    async def _spawn_engine(self, place: str, engine: EngineId) -> SpawnedEngine:
        if place in self._spawner.lent_engines:  # it runs beside a rank, which is placed first
            await asyncio.shield(self._starting)
        return await self._spawner.engine(place, engine)

    async def _watch_cluster(self, controller: Controller) -> None:
        """Look at the cluster now and then, and move actors to their preferred pools."""
        silent = 0
        while silent < _LOOKS:
            await asyncio.sleep(_LOOK_S)
            if not await asyncio.to_thread(is_there, self._head):
                silent += 1
                continue
            silent = 0
            try:
                lost = self._resources.observe(await asyncio.to_thread(nodes))
            except Exception as error:
                self._warn(f"looking at the cluster failed: {type(error).__name__}: {error}")
                continue
            if any(worker.startswith(RANK) for worker in lost):
                self._run(self._remake_trainer())
            elif self._mover.is_due and _is_over(self._moving):
                self._moving = self._run(_tried(self._mover.move))
            if _is_over(self._moving_home):
                self._moving_home = self._run(_tried(self._move_home))
        controller.fail(cluster_lost(self._head, self._directory))

    async def _move_home(self) -> bool:
        """Move engines and environment workers to preferred pools; say whether all could move."""
        assert self._rollout is not None
        return all(await asyncio.gather(self._engines.move_home(), self._rollout.move_home()))

    async def _remake_trainer(self) -> None:
        with contextlib.suppress(Exception):  # its next call tries again and raises the reason
            await self._trainer.remake()

    def _run(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _is_over(task: "asyncio.Task[None] | None") -> bool:
    return task is None or task.done()


async def _tried(move: Callable[[], Awaitable[bool]]) -> None:
    """Move something; if it cannot move, rest before the next try."""
    if not await move():
        await asyncio.sleep(_REST_S)


class _Rollout(EnvSupervisor):
    """Opens and closes engines for evaluation, which runs in this process, too."""

    local: EngineClient
    generators: Mapping[EngineId, Generator]

    def open_engine(self, engine: EngineId, pool: str, *, is_guest: bool) -> None:
        """Let workers send requests to an engine, and evaluation too unless it is lent."""
        super().open_engine(engine, pool, is_guest=is_guest)
        if not is_guest and self.has_engine(engine) and not self.local.router.is_open(engine):
            self.local.add(engine, self.generators[engine])
            self.local.open(engine, pool)

    def close_engine(self, engine: EngineId, *, is_lost: bool = False) -> None:
        """Send an engine no further request, from workers or evaluation."""
        super().close_engine(engine, is_lost=is_lost)
        self.local.close(engine)
