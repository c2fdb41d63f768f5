"""An environment worker that another process drives by calls, and the actor made from a config.

Calls bring orders (start and stop attempts, open and close engines) and return what has happened
since: events, the trajectories they refer to, and engines that could not be reached. A trajectory
is reported before the event that ends it, so the buffer has it when the scheduler learns of it. An
error outside the failures of an attempt breaks the worker: every further call raises it, so that
another worker is made.

`EnvActor` is named as `module:Class` and made from JSON options, so any host can spawn it. It has a
tokenizer and no model and loads no torch, because attempts wait for its process to start.
"""

import asyncio
import gc
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rollart.clock import SystemClock
from rollart.cluster.channel import InOrder, Mailbox
from rollart.cluster.engine_server import RemoteEngine
from rollart.config import Config, add_import_paths
from rollart.config.checks import open_policy
from rollart.config.loader import parse_config
from rollart.control.routing import Router
from rollart.events import Event, Launch
from rollart.pipelines.task_setups import make_setups, task_streams
from rollart.ports import Array, Handle, Renderer
from rollart.rollout.barrier import barrier_for
from rollart.rollout.engine_client import EngineClient, ResidentPolicies
from rollart.rollout.env_manager import Access, Setup
from rollart.rollout.env_worker import Ends, EnvWorker
from rollart.types import EngineId, Trajectory, TrajectoryId, Version
from rollart.weights.prefetch import Source, open_source
from rollart.weights.store import open_store


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAttempts:
    """Start attempts that belong together.

    Example:
        >>> StartAttempts(launches=(launch,))

    """

    launches: tuple[Launch, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAttempt:
    """Stop an attempt.

    Example:
        >>> StopAttempt(id=TrajectoryId(17))

    """

    id: TrajectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveBarrier:
    """Let the other attempts of a barrier continue without one that ended.

    Example:
        >>> LeaveBarrier(id=TrajectoryId(17))

    """

    id: TrajectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenEngine:
    """Send requests to an engine from now on.

    Example:
        >>> OpenEngine(engine=EngineId("torch-0"), pool="compute", handle=handle, is_guest=False)

    """

    engine: EngineId
    pool: str
    handle: Handle
    is_guest: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseEngine:
    """Send an engine no further request; if it is lost, continue its turns on others.

    Example:
        >>> CloseEngine(engine=EngineId("torch-0"), is_lost=True)

    """

    engine: EngineId
    is_lost: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineUnreachable:
    """An engine could not be reached.

    Example:
        >>> EngineUnreachable(engine=EngineId("torch-0"), message="ActorDiedError: ...")

    """

    engine: EngineId
    message: str


EnvOrder = StartAttempts | StopAttempt | LeaveBarrier | OpenEngine | CloseEngine
EnvReport = Event | Trajectory | EngineUnreachable

MakeWorker = Callable[[Ends], tuple[EnvWorker, EngineClient]]


class EnvServer:
    """Runs an EnvWorker and its client of the engines."""

    def __init__(self, make: MakeWorker, *, name: str) -> None:
        """Take what makes the worker, and the name its engines know it by.

        No other worker of the run may ever have that name: engines would mix the two up.
        """
        self._make = make
        self._name = name
        self._orders: InOrder[EnvOrder] = InOrder()
        self._mailbox: Mailbox[EnvReport]
        self._worker: EnvWorker
        self._client: EngineClient
        self._engines: dict[EngineId, RemoteEngine] = {}
        self._attempts: set[asyncio.Task[None]] = set()
        self._is_serving = False
        self._is_broken = False

    async def start(self) -> None:
        """Begin to serve."""
        self._mailbox = Mailbox()
        self._worker, self._client = self._make(Ends(put=self._put, post=self._put))
        self._is_serving = True

    async def exchange(
        self, caller: str, number: int, orders: Sequence[EnvOrder]
    ) -> list[EnvReport]:
        """Carry out orders; return the reports since the last call."""
        del caller  # there is one
        for order in self._orders.take(number, orders):
            self._obey(order)
        return await self._mailbox.collect(number)

    async def close(self) -> None:
        """Stop every attempt and close every environment."""
        for engine in self._engines.values():
            engine.close()
        for task in self._attempts:
            task.cancel()
        await asyncio.gather(*self._attempts, return_exceptions=True)
        if self._is_serving:
            await self._worker.close()

    def create_task(self, coro: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run an attempt; an error in it breaks the worker."""
        task = asyncio.get_running_loop().create_task(coro)
        self._attempts.add(task)
        task.add_done_callback(self._attempt_ended)
        return task

    def _attempt_ended(self, task: "asyncio.Task[None]") -> None:
        self._attempts.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception) and not self._is_broken:
            self._is_broken = True
            self._mailbox.fail(error)

    def _put(self, report: EnvReport) -> None:
        if not self._is_broken:
            self._mailbox.put(report)

    def _obey(self, order: EnvOrder) -> None:
        match order:
            case StartAttempts():
                self._worker.launch(order.launches, self)
            case StopAttempt():
                self._worker.cancel(order.id)
            case LeaveBarrier():
                self._worker.leave(order.id)
            case OpenEngine():
                if order.engine not in self._engines:  # one that was lent before is known already
                    engine = RemoteEngine(
                        order.handle, id=order.engine, caller=self._name, lose=self._lose
                    )
                    self._engines[order.engine] = engine
                    self._client.add(order.engine, engine)
                self._client.open(order.engine, order.pool, is_guest=order.is_guest)
            case CloseEngine():
                self._client.close(order.engine)
                engine = self._engines.get(order.engine)
                if order.is_lost and engine is not None:
                    engine.lost(ConnectionError("the engine is lost"))

    def _lose(self, engine: EngineId, error: Exception) -> None:
        self._client.close(engine)
        self._put(EngineUnreachable(engine=engine, message=f"{type(error).__name__}: {error}"))


class EnvActor(EnvServer):
    """An environment worker in a process of its own."""

    def __init__(
        self,
        *,
        config: str,
        name: str,
        model: str,
        weights: str,
        version: int,
        store: Mapping[str, Any],
    ) -> None:
        """Take the model, whose tokenizer is used, and where policies that act here get weights.

        `weights` is the directory that holds those of `version`, `store` what later ones are in.
        """
        settings = parse_config(config)
        add_import_paths(settings)
        setups = make_setups(settings, settings.sampling)
        policy = open_policy(settings)
        renderer = policy.renderer(Path(model))
        fetch = _Store(store, wait_s=settings.weights.wait_s).fetch
        policies = ResidentPolicies(
            policy,
            model=Path(model),
            start=Path(weights),
            version=Version(version),
            fetch=fetch,
        )
        gc.collect()
        gc.freeze()  # what start-up made lives as long as the process: not worth looking at again
        super().__init__(
            lambda ends: _make_worker(
                settings, setups, renderer=renderer, policies=policies, ends=ends
            ),
            name=name,
        )


class _Store:
    """The weight store, opened when weights are first asked of it."""

    def __init__(self, options: Mapping[str, Any], *, wait_s: float) -> None:
        self._options = options
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._source: Source | None = None

    def fetch(self, version: Version) -> Mapping[str, Array]:
        """Return a version of the weights, once it is published."""
        with self._lock:
            if self._source is None:
                self._source = open_source(open_store(**self._options), wait_s=self._wait_s)
        return self._source.fetch(version)


def _make_worker(
    config: Config,
    setups: Mapping[str, Setup],
    *,
    renderer: Renderer | None,
    policies: ResidentPolicies,
    ends: Ends,
) -> tuple[EnvWorker, EngineClient]:
    """Return a worker for a process of its own, with no engine opened yet."""
    mode = config.mode
    rule = config.routing if mode.affinity else replace(config.routing, affinity={})
    client = EngineClient(
        Router(rule, engines=()), generators={}, now=SystemClock().now, on_cut=ends.cut
    )
    access = Access(
        renderer=renderer,
        engines=client,
        barrier=barrier_for(mode.lockstep),
        policies=policies,
    )
    worker = EnvWorker(
        setups=setups,
        access=access,
        tasks=task_streams(config)[0].task,
        ends=ends,
        score_elsewhere=mode.score == "after_rollout",
    )
    return worker, client
