"""Where a run takes place: its engines, trainer and environment workers, made from a config.

`Deployment` is what a pipeline drives, the same on one machine (here) and on a Ray cluster
(`cluster.ray_deployment`). A deployment is opened before the run begins and closed when it has
ended, whatever happened between: its parts are context managers, made in order and closed in
reverse, so nothing outlives what it depends on. A resumed run gets its parts from a checkpoint.
"""

import asyncio
import collections.abc
import os
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from rollart.checkpoints.resume import damaged_error
from rollart.checkpoints.save import STATE, Saved
from rollart.clock import SystemClock
from rollart.cluster.local_host import EmbeddedHost, thread_env
from rollart.cluster.trainer_supervisor import TrainerClient
from rollart.config import Config
from rollart.config.checks import engine_options, open_policy
from rollart.config.places import TRAINING, local_engines
from rollart.control.routing import Router, Routing
from rollart.control.scheduler import Scheduler
from rollart.control.snapshot import restore
from rollart.inference.driver import EngineDriver
from rollart.inference.factory import open_engine
from rollart.pipelines.task_setups import task_streams
from rollart.ports import Generator, Renderer, WeightStore
from rollart.rollout.barrier import NoBarrier, barrier_for
from rollart.rollout.buffer import Buffer
from rollart.rollout.controller import Controller, Rollout
from rollart.rollout.engine_client import EngineClient, ResidentPolicies
from rollart.rollout.env_manager import Access, Setup
from rollart.rollout.env_worker import Ends, EnvWorker
from rollart.rollout.evaluation import Evaluator
from rollart.seeds import derive_seed
from rollart.serialization.codec import describe_fault
from rollart.training.distributed.ranks import RankGroup, RankPlan, rank_of
from rollart.training.distributed.rendezvous import LOOPBACK
from rollart.training.options import trainer_arguments
from rollart.training_ports import RemoteTrainer
from rollart.types import EngineId, EngineInfo, Json, TrajectoryId, Version
from rollart.weights.prefetch import open_source
from rollart.weights.shared_memory import remove_directory, remove_leftovers, shared_directory
from rollart.weights.store import open_store


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """The inference side of a run on this machine."""

    proxies: Mapping[EngineId, EngineDriver]
    pools: Mapping[EngineId, str]
    """Where each engine belongs."""
    lent: frozenset[EngineId]
    """Engines that use the trainer's cores while it waits; they start suspended."""
    renderer: Renderer | None
    policies: ResidentPolicies
    """The policies of this process, where they act by themselves."""

    @property
    def infos(self) -> tuple[EngineInfo, ...]:
        """The engines as the scheduler knows them."""
        return tuple(
            EngineInfo(
                id=id_,
                pool=self.pools[id_],
                version=proxy.version,
                lent=id_ in self.lent,
            )
            for id_, proxy in self.proxies.items()
        )

    def router(self, rule: Routing, *, affinity: bool) -> Router:
        """Return a router over the engines that serve now; by domain if the mode has affinity."""
        rule = rule if affinity else replace(rule, affinity={})
        return Router(rule, engines=[(info.id, info.pool) for info in self.infos if not info.lent])


@contextmanager
def open_weights(config: Config) -> collections.abc.Generator[tuple[WeightStore, dict[str, Json]]]:
    """Open the weight store; yields it, and the options that open it in another process."""
    remove_leftovers()
    options = config.weights
    directory = None if options.place else shared_directory(config.run.name)
    kind, place, keep = options.store, options.place or str(directory), config.kept_versions
    size, delta = options.bucket_bytes, options.delta
    try:
        with closing(open_store(kind, place, keep, bucket_bytes=size, delta=delta)) as store:
            buckets: dict[str, Json] = {"bucket_bytes": size, "delta": delta}
            yield store, {"kind": kind, "directory": place, "keep": keep, **buckets}
    finally:
        if directory is not None:
            remove_directory(directory)


@asynccontextmanager
async def open_engines(
    config: Config,
    *,
    model: Path,
    version: Version,
    store: WeightStore | None,
    base: Path | None = None,
) -> AsyncGenerator[Engines]:
    """Run the engines on a checkpoint's weights until the block ends.

    `base` is the run's start model, if that is another: the checkpoint may be pruned meanwhile.

    Where training hardware is lent, one more engine uses its cores while they are idle.
    """
    policy = open_policy(config)
    pools = local_engines(config)
    options, threads = engine_options(config), _threads_each(config, engines=len(pools))
    is_lending = config.lending.enabled and store is not None
    lent = [EngineId(f"{config.engine.label}-lent")] if is_lending else []
    pools |= dict.fromkeys(lent, TRAINING)
    source = None if store is None else open_source(store, wait_s=config.weights.wait_s)
    fetch = None if source is None else source.fetch
    proxies: dict[EngineId, EngineDriver] = {}
    for id_ in pools:
        engine = open_engine(
            config.engine.name, options=options, model=model, version=version, threads=threads
        )
        proxies[id_] = EngineDriver(
            engine,
            id=id_,
            fetch=fetch,
            pulled_s=None if source is None else source.pulled_s,
            keep_kv=config.syncing.keep_kv,
        )
    for id_ in lent:
        await proxies[id_].suspend()
    loops = [asyncio.create_task(proxy.run()) for proxy in proxies.values()]
    try:
        yield Engines(
            proxies=proxies,
            pools=pools,
            lent=frozenset(lent),
            renderer=policy.renderer(model),
            policies=ResidentPolicies(
                policy, model=base or model, start=model, version=version, fetch=fetch
            ),
        )
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        if source is not None:
            source.close()


def _threads_each(config: Config, *, engines: int) -> int:
    """Return how many threads each engine gets of the cores that the trainer does not use."""
    cores = len(os.sched_getaffinity(0)) - config.training.threads
    return max(1, cores // engines)


@asynccontextmanager
async def open_trainer(
    config: Config, *, model: Path, store: dict[str, Json]
) -> AsyncGenerator[RemoteTrainer]:
    """Run the trainer until the block ends, in processes of its own if the store allows it."""
    host = EmbeddedHost(env=thread_env(config.training.threads))
    policy = open_policy(config)
    options: dict[str, Json] = {
        "model": str(model),
        "store": store,
        **policy.trainer_options(),
        **trainer_arguments(
            config.training,
            config.algorithm,
            import_paths=config.run.import_paths,
            run_steps=config.run.steps,
        ),
    }
    try:
        plan = RankPlan(
            options=options,
            addresses=[LOOPBACK] * config.training.ranks,
            own_process=config.weights.store != "memory",
            worker=rank_of(policy.trainer),
        )
        group = await RankGroup.start(host, plan)
        try:
            yield TrainerClient(group)
        finally:
            await group.close()
    finally:
        await host.close()


_EVALUATION = 3


def make_scheduler(config: Config, saved: Saved | None) -> Scheduler:
    """Return a new scheduler, or one restored from a checkpoint."""
    rules, domain_of = config.rules, task_streams(config)[0].domain
    if saved is None:
        return Scheduler(rules, domain_of=domain_of)
    try:
        return restore(rules, saved.scheduler, domain_of=domain_of)
    except (KeyError, TypeError, ValueError) as error:
        raise damaged_error(saved.directory, f"{STATE}: {describe_fault(error)}") from error


def make_buffer(scheduler: Scheduler, saved: Saved | None) -> Buffer:
    """Return the buffer, with the trajectories of a checkpoint."""
    buffer = Buffer(scheduler.is_fresh)
    for trajectory in () if saved is None else saved.trajectories:
        buffer.put(trajectory)
    return buffer


def make_evaluator(config: Config, setups: Mapping[str, Setup], engines: Engines) -> Evaluator:
    """Return what plays held-out episodes on the engines of this process."""
    access = Access(
        renderer=engines.renderer,
        engines=_make_client(config, engines),
        barrier=NoBarrier(),
        policies=engines.policies,
    )
    return evaluator_over(config, setups, access)


def evaluator_over(config: Config, setups: Mapping[str, Setup], access: Access) -> Evaluator:
    """Return what plays held-out episodes with the engines it has access to."""
    # After the run's own slots and as many that replace slots that rest.
    first, count = 2 * config.run.environments, config.run.environments
    return Evaluator(
        setups=setups,
        access=access,
        tasks=task_streams(config)[1].task,
        slots=range(first, first + count),
        seed=derive_seed(config.run.seed, _EVALUATION),
    )


def make_worker(
    config: Config,
    setups: Mapping[str, Setup],
    engines: Engines,
    controller: Controller,
    buffer: Buffer,
) -> EnvWorker:
    """Return what runs attempts and reports to the controller."""
    mode, ends = config.mode, Ends(put=buffer.put, post=controller.post)
    return EnvWorker(
        setups=setups,
        access=Access(
            renderer=engines.renderer,
            engines=_make_client(config, engines, on_cut=ends.cut),
            barrier=barrier_for(mode.lockstep),
            is_fresh=controller.scheduler.is_fresh,
            policies=engines.policies,
        ),
        tasks=task_streams(config)[0].task,
        ends=ends,
        score_elsewhere=mode.score == "after_rollout",
    )


def _make_client(
    config: Config,
    engines: Engines,
    on_cut: Callable[[TrajectoryId, int], None] | None = None,
) -> EngineClient:
    return EngineClient(
        engines.router(config.routing, affinity=config.mode.affinity),
        generators=engines.proxies,
        now=SystemClock().now,
        on_cut=on_cut,
    )


class Deployment(Protocol):
    """The parts of a run, wherever they are."""

    @property
    def infos(self) -> tuple[EngineInfo, ...]:
        """The engines there are."""
        ...

    @property
    def generators(self) -> Mapping[EngineId, Generator]:
        """The engines by id; on a cluster they come and go."""
        ...

    async def trainer(self) -> RemoteTrainer:
        """Return the trainer, once it is made."""
        ...

    def make_evaluator(self, setups: Mapping[str, Setup]) -> Evaluator:
        """Return what plays held-out episodes on the engines."""
        ...

    async def make_rollout(
        self, setups: Mapping[str, Setup], *, controller: Controller, buffer: Buffer
    ) -> Rollout:
        """Return what runs attempts and reports to the controller."""
        ...

    def lose_engine(self, engine: EngineId, message: str) -> None:
        """Record that an engine is lost."""
        ...

    async def stats(self) -> dict[str, dict[str, float]]:
        """Return the counters of each engine."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalDeployment:
    """Engines in this process, the trainer in one of its own."""

    config: Config
    engines: Engines
    starting: "asyncio.Task[RemoteTrainer]"
    """The trainer starts while the engines are evaluated."""

    @property
    def infos(self) -> tuple[EngineInfo, ...]:
        """The engines there are."""
        return self.engines.infos

    @property
    def generators(self) -> Mapping[EngineId, Generator]:
        """The engines by id."""
        return self.engines.proxies

    async def trainer(self) -> RemoteTrainer:
        """Return the trainer, once it is made."""
        return await self.starting

    def make_evaluator(self, setups: Mapping[str, Setup]) -> Evaluator:
        """Return what plays held-out episodes on the engines."""
        return make_evaluator(self.config, setups, self.engines)

    async def make_rollout(
        self, setups: Mapping[str, Setup], *, controller: Controller, buffer: Buffer
    ) -> Rollout:
        """Return what runs attempts and reports to the controller."""
        return make_worker(self.config, setups, self.engines, controller, buffer)

    def lose_engine(self, engine: EngineId, message: str) -> None:
        """Fail: an engine of this process cannot be lost without it."""
        raise AssertionError(f"{engine}: {message}")

    async def stats(self) -> dict[str, dict[str, float]]:
        """Return the counters of each engine."""
        return {id_: dict(proxy.stats()) for id_, proxy in self.engines.proxies.items()}


@asynccontextmanager
async def open_embedded(
    config: Config, *, model: Path, start: Path, version: Version
) -> AsyncGenerator[Deployment]:
    """Open this machine: the trainer begins with `model`, the engines with `start`'s weights."""
    async with AsyncExitStack() as stack:
        store, opening = stack.enter_context(open_weights(config))
        context = open_trainer(config, model=model, store=opening)
        starting = asyncio.create_task(stack.enter_async_context(context))
        stack.push_async_callback(_give_up, starting)
        engines = await stack.enter_async_context(
            open_engines(config, model=start, version=version, store=store, base=model)
        )
        yield LocalDeployment(config=config, engines=engines, starting=starting)


async def _give_up(starting: "asyncio.Task[RemoteTrainer]") -> None:
    """End a trainer that is still being made."""
    if not starting.done():
        starting.cancel()
        await asyncio.wait({starting})
