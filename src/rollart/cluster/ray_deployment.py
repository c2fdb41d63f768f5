"""A run on a Ray cluster: the same parts as on one machine, each where its pool is.

    this process: Controller, Buffer, evaluation      ─┬─ EnvActor … ──► EngineActor …
                                                       └─ TorchTrainer ranks ──► weight store ──┘

Environment workers ask engines directly. What dies is made again: an engine in its berth, an
environment worker in its place, the trainer from its own last save. What had to be put elsewhere
goes back when its pool has room.

The trainer's way home: its ranks move together to where they belong.

Where all of them fit at home beside those there are, successors are made while the trainer works.
Where they do not, as when some of the ranks are at home already, the trainer saves, ends, and is
made again from its save. Either way a place counts as taken until the rank in it has ended.
"""

import asyncio
import contextlib
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Coroutine,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollart.clock import SystemClock
from rollart.cluster.deployment import Deployment, evaluator_over, open_weights
from rollart.cluster.engine_supervisor import EngineSupervisor, FleetSettings, Spawned
from rollart.cluster.env_supervisor import EnvSupervisor, EnvWorkerSettings
from rollart.cluster.ray_resources import RANK, Resources, Spawner, SpawnSettings, bind_ranks
from rollart.cluster.ray_session import (
    check_cluster,
    cluster_gone,
    connected,
    guarded,
    head_address,
    is_there,
    nodes,
)
from rollart.cluster.trainer_supervisor import TrainerSupervisor
from rollart.config import Config
from rollart.config.places import trainer_place
from rollart.control.placement import Binding
from rollart.control.routing import Router
from rollart.errors import PlacementError
from rollart.events import EngineJoined, Event
from rollart.inference.renderer import ChatRenderer
from rollart.models.tokenizer import load_tokenizer
from rollart.ports import Generator, Handle
from rollart.rollout.buffer import Buffer
from rollart.rollout.controller import Controller, Rollout
from rollart.rollout.engine_client import EngineClient
from rollart.rollout.env_manager import Setup
from rollart.rollout.env_worker import Ends
from rollart.rollout.evaluation import Evaluator
from rollart.types import EngineId, EngineInfo, Version

_SUCCESSOR = "next-trainer-"
"""What the names of ranks begin with that are not yet the trainer's."""


class TrainerMover:
    """Moves a trainer when there is a better place for it."""

    def __init__(
        self,
        config: Config,
        resources: Resources,
        trainer: TrainerSupervisor,
        *,
        spawn: Callable[[Sequence[Binding]], Awaitable[Handle]],
        warn: Callable[[str], None],
    ) -> None:
        """Take the trainer, and what makes one where its ranks are bound."""
        self._config = config
        self._resources = resources
        self._trainer = trainer
        self._spawn = spawn
        self._warn = warn

    @property
    def is_due(self) -> bool:
        """Whether a rank could now be where it belongs and is not."""
        ranks = self._resources.bindings(RANK)
        return any(self._resources.is_better(rank.worker) for rank in ranks)

    async def move(self) -> bool:
        """Move the trainer; say whether that could be."""
        self._warn("the trainer moves to where it belongs")
        successors = self._bind_successors()
        try:
            if not successors:
                await self._trainer.restart()
            elif await self._trainer.move(lambda: self._spawn(successors)):
                self._rename(successors)
        except Exception as error:
            self._warn(f"the trainer cannot move: {error}")
            return False
        finally:
            self._release(successors)
        return True

    def _bind_successors(self) -> list[Binding]:
        """Bind a successor of every rank at home, beside the ranks; none if they do not all fit."""
        try:
            successors = bind_ranks(self._config, self._resources, prefix=_SUCCESSOR)
        except PlacementError:
            successors = []
        if all(each.is_at_home for each in successors):
            return successors
        self._release(successors)
        return []

    def _rename(self, successors: Sequence[Binding]) -> None:
        """Let the successors hold their places as the ranks, whose own are free now."""
        for each in successors:
            worker = RANK + each.worker.removeprefix(_SUCCESSOR)
            self._resources.release(each.worker)
            self._resources.put_back([replace(each, worker=worker)], trainer_place(self._config))

    def _release(self, successors: Sequence[Binding]) -> None:
        for each in successors:
            self._resources.release(each.worker)


_SAVE_EVERY = 10
"""Steps the trainer makes between two saves of its own."""
_LEAST_WORKERS = 2
_LOOK_S = 1.0
"""Seconds between looks at the cluster, when lost workers get new places."""
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
) -> AsyncGenerator[Deployment]:
    """Open a cluster: the trainer begins with `model`, the engines with `start`'s weights."""
    async with AsyncExitStack() as stack:
        stack.enter_context(connected(config.ray.address))
        head = head_address()
        stack.enter_context(guarded(head, lambda: str(cluster_gone(head, directory))))
        _, store = stack.enter_context(open_weights(config))
        begin = SpawnSettings(model=model, weights=start, version=version, store=store)
        site = RayDeployment(config, begin, directory=directory, warn=warn)
        stack.push_async_callback(site.close)
        await site.open()
        yield site


class RayDeployment:
    """Engines, environment workers and trainer on a cluster."""

    def __init__(
        self, config: Config, start: SpawnSettings, *, directory: Path, warn: Warn
    ) -> None:
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
        ground = FleetSettings(
            spawn=self._spawn_engine,
            release=self._resources.release,
            better=self._spawner.is_better,
            newest=self._newest_version,
            patience_s=config.weights.wait_s + _ANSWER_S,
            warn=warn,
        )
        self._fleet = EngineSupervisor(ground, berths=self._spawner.berths())
        self._trainer = TrainerSupervisor(
            self._spawner.trainer,
            directory=directory / "trainer",
            save_every=_SAVE_EVERY,
            warn=warn,
        )
        self._mover = TrainerMover(
            config, self._resources, self._trainer, spawn=self._spawner.trainer, warn=warn
        )
        rule = config.routing if config.mode.affinity else replace(config.routing, affinity={})
        self._switchboard = EngineClient(
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
        self._newest = lambda: controller.scheduler.weights.published
        is_lockstep = self._config.mode.lockstep
        grounds = EnvWorkerSettings(
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


class _Rollout(EnvSupervisor):
    """Opens and closes engines for evaluation in this process too."""

    local: EngineClient
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
