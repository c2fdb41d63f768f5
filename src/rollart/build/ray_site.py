"""A run on a Ray cluster: the same parts as on one machine, each where its pool is.

    this process: Controller, Buffer, evaluation      ─┬─ EnvActor … ──► EngineActor …
                                                       └─ TorchTrainer ranks ──► weight store ──┘

Environment workers ask engines directly. What dies is made again: an engine in its berth, an
environment worker in its place, the trainer from its own last save. What had to be put elsewhere
goes back when its pool has room.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollart.build.assembly import open_weights
from rollart.build.cluster_checks import check_cluster, cluster_gone
from rollart.build.parts import evaluator_over
from rollart.build.ray_moving import TrainerMover
from rollart.build.ray_ranks import RANK
from rollart.build.ray_spawning import Spawner, Start
from rollart.build.resources import Resources
from rollart.build.site import Site
from rollart.clock import SystemClock
from rollart.config import Config
from rollart.control.routing import Router
from rollart.events import EngineJoined, Event
from rollart.models.renderer import ChatRenderer
from rollart.models.tokenizer_loading import load_tokenizer
from rollart.on_ray.guard import guarded
from rollart.on_ray.session import connected, head_address, is_there, nodes
from rollart.ports import Generator, Handle
from rollart.runtime.buffer import Buffer
from rollart.runtime.controller import Controller, Rollout
from rollart.runtime.engine_fleet import EngineFleet, Ground, Spawned
from rollart.runtime.env_manager import Setup
from rollart.runtime.env_worker import Ends
from rollart.runtime.evaluation import Evaluator
from rollart.runtime.lasting_trainer import LastingTrainer
from rollart.runtime.remote_workers import Grounds, RemoteEnvWorkers
from rollart.runtime.switchboard import Switchboard
from rollart.types import EngineId, EngineInfo, Version

_SAVE_EVERY = 10
"""Steps the trainer makes between two saves of its own."""
_LEAST_WORKERS = 2
_LOOKS = 3
"""Looks in a row at which nobody must answer at the head before the cluster counts as gone."""
_ANSWER_S = 60.0
"""Time an engine may take to answer, beyond what weights may take to arrive."""
_REST_S = 30.0
"""Time between two tries to move what could not be moved."""

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
        head = head_address()
        stack.enter_context(guarded(head, lambda: str(cluster_gone(head, directory))))
        _, store = stack.enter_context(open_weights(config))
        begin = Start(model=model, weights=start, version=version, store=store)
        site = RaySite(config, begin, directory=directory, warn=warn)
        stack.push_async_callback(site.close)
        await site.open()
        yield site


class RaySite:
    """Engines, environment workers and trainer on a cluster."""

    def __init__(self, config: Config, start: Start, *, directory: Path, warn: Warn) -> None:
        """Look at the cluster and see that the config can run there; make nothing yet."""
        seen = nodes()
        check_cluster(config, seen)
        self._config = config
        self._start = start
        self._warn = warn
        self._newest: Callable[[], Version] = lambda: start.version
        self._tasks: set[asyncio.Task[None]] = set()
        self._mending: asyncio.Task[None] | None = None
        self._moving: asyncio.Task[None] | None = None
        self._rollout: _Rollout | None = None
        self._head = head_address()
        self._directory = directory
        self._resources = Resources(config, directory, seen)
        cpu_nodes = sum("CPU" in node.resources for node in seen)
        self._workers = config.ray.environment_workers or max(_LEAST_WORKERS, cpu_nodes)
        self._spares = config.ray.spare_workers if len(seen) > 1 else 0
        self._spawner = Spawner(config=config, start=start, resources=self._resources)
        ground = Ground(
            spawn=self._spawn_engine,
            release=self._resources.release,
            better=self._spawner.is_better,
            newest=self._newest_version,
            patience_s=config.weights.wait_s + _ANSWER_S,
            warn=warn,
        )
        self._fleet = EngineFleet(ground, berths=self._spawner.berths())
        self._trainer = LastingTrainer(
            self._spawner.trainer,
            directory=directory / "trainer",
            save_every=_SAVE_EVERY,
            warn=warn,
        )
        self._mover = TrainerMover(
            config, self._resources, self._trainer, spawn=self._spawner.trainer, warn=warn
        )
        rule = config.routing if config.mode.affinity else replace(config.routing, affinity={})
        self._switchboard = Switchboard(
            Router(rule, engines=()), generators={}, now=SystemClock().now
        )

    async def open(self) -> None:
        """Make the engines and begin to make the trainer."""
        self._starting = asyncio.create_task(self._trainer.start())
        self._fleet.post, self._fleet.close_engine = self._before_rollout, self._switchboard.close
        await self._fleet.start()
        for info in self._fleet.infos:
            self._open_here(info)

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
        renderer = ChatRenderer(load_tokenizer(self._start.weights))
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
        grounds = Grounds(
            spawn=self._spawner.environments,
            release=self._resources.release,
            leave=self._fleet.leave,
            better=self._resources.is_better,
            warn=self._warn,
            give_up=controller.fail,
        )
        rollout = _Rollout(
            grounds,
            count=1 if is_lockstep else self._workers,
            spares=self._spares,
            ends=Ends(put=buffer.put, post=controller.post),
            handle_of=self._fleet.handle_of,
            on_lost_engine=self._fleet.lose,
            is_lockstep=is_lockstep,
        )
        rollout.local, rollout.generators = self._switchboard, self._fleet.generators
        self._rollout = rollout
        await rollout.start()
        await self._switchboard.some_open()  # what was lost before may still be on its way
        for info in self._fleet.infos:
            if not info.lent:
                rollout.open_engine(info.id, info.pool, is_guest=False)
        self._fleet.post = controller.post
        self._fleet.close_engine = lambda engine: rollout.close_engine(engine, is_lost=True)
        self._run(self._watch_cluster(controller))
        return rollout

    def lose_engine(self, engine: EngineId, message: str) -> None:
        """Take note that an engine is gone."""
        self._fleet.lose(engine, message)

    async def stats(self) -> dict[str, dict[str, float]]:
        """Return the counters of each engine."""
        return await self._fleet.stats()

    async def close(self) -> None:
        """End everything on the cluster that belongs to the run."""
        tasks = [*self._tasks, self._starting]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._rollout is not None:
            await self._rollout.close()
        with contextlib.suppress(Exception):
            await self._fleet.close()
        if is_there(self._head):  # nobody answers where the cluster is gone
            with contextlib.suppress(Exception):
                await self._trainer.close()
            await self._spawner.host.close()

    def _before_rollout(self, event: Event) -> None:
        """Let an engine that replaces one serve evaluation; nobody else asks engines yet."""
        if isinstance(event, EngineJoined):
            self._open_here(event.engine)

    def _open_here(self, info: EngineInfo) -> None:
        if not info.lent and not self._switchboard.router.is_open(info.id):
            self._switchboard.add(info.id, self._fleet.generators[info.id])
            self._switchboard.open(info.id, info.pool)

    def _newest_version(self) -> Version:
        return self._newest()

    async def _spawn_engine(self, berth: str, engine: EngineId) -> Spawned:
        if self._spawner.is_lent(berth):  # it belongs beside a rank, which must have its place
            await asyncio.shield(self._starting)
        return await self._spawner.engine(berth, engine)

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
            except Exception as error:
                self._warn(f"looking at the cluster failed: {type(error).__name__}: {error}")
                continue
            if any(worker.startswith(RANK) for worker in lost):
                self._run(self._remake_trainer())
            elif self._mover.is_due and _is_over(self._moving):
                self._moving = self._run(_tried(self._mover.move))
            if _is_over(self._mending):
                self._mending = self._run(_tried(self._mend))
        controller.fail(cluster_gone(self._head, self._directory))

    async def _mend(self) -> bool:
        """Move engines and environment workers home, if they now can; say whether all could."""
        assert self._rollout is not None
        return all(await asyncio.gather(self._fleet.mend(), self._rollout.mend()))

    async def _remake_trainer(self) -> None:
        with contextlib.suppress(Exception):  # the next call of it tries again and tells why
            await self._trainer.remake()

    def _run(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _is_over(task: "asyncio.Task[None] | None") -> bool:
    return task is None or task.done()


async def _tried(move: Callable[[], Awaitable[bool]]) -> None:
    """Move something; if that could not be, rest before it is tried again."""
    if not await move():
        await asyncio.sleep(_REST_S)


class _Rollout(RemoteEnvWorkers):
    """Opens and closes engines for evaluation in this process too."""

    local: Switchboard
    generators: Mapping[EngineId, Generator]

    def open_engine(self, engine: EngineId, pool: str, *, is_guest: bool) -> None:
        """Let an engine take requests, from everywhere; of one that is lent, no evaluation's."""
        super().open_engine(engine, pool, is_guest=is_guest)
        if not is_guest and self.has_engine(engine) and not self.local.router.is_open(engine):
            self.local.add(engine, self.generators[engine])
            self.local.open(engine, pool)

    def close_engine(self, engine: EngineId, *, is_lost: bool = False) -> None:
        """Send an engine no further request, from anywhere."""
        super().close_engine(engine, is_lost=is_lost)
        self.local.close(engine)
