"""Parts of a live run without a model: environments, a renderer, a trainer, whole runs."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
from conditions import BOUND_S
from scorers import in_thread

from rollart.clock import SystemClock
from rollart.cluster.local_host import EmbeddedHost
from rollart.cluster.trainer_supervisor import TrainerClient
from rollart.control.routing import Router, Routing
from rollart.control.rules import Rules
from rollart.control.scheduler import Scheduler
from rollart.control.snapshot import encode_rules
from rollart.errors import StorageError
from rollart.events import Command, Event
from rollart.inference.driver import EngineDriver
from rollart.inference.scripted import ScriptedEngine
from rollart.observe.log import EventLog, LogHeader
from rollart.ports import Env
from rollart.rollout.barrier import LockStepBarrier, NoBarrier
from rollart.rollout.buffer import Buffer
from rollart.rollout.controller import Controller, Parts
from rollart.rollout.engine_client import EngineClient
from rollart.rollout.env_manager import Access, Setup
from rollart.rollout.env_slot import Timeouts
from rollart.rollout.env_worker import Ends, EnvWorker
from rollart.rollout.scoring import Scorer
from rollart.training.batch import encode
from rollart.types import (
    EngineId,
    EngineInfo,
    EpisodeLimits,
    Message,
    Sampling,
    StepReport,
    Task,
    Trajectory,
    Version,
)
from rollart.weights.store import open_store

ENGINE = EngineId("engine-0")
LENT = EngineId("engine-lent")
STOP = 0
KEEP = 8
"""Versions kept: more than any run here lets the trainer go ahead."""


class LetterRenderer:
    """One token a character; 0 ends a turn."""

    stop = (STOP,)

    def start(self, messages: Sequence[Message]) -> tuple[int, ...]:
        system = messages[0].text if len(messages) > 1 else ""
        return tuple(ord(each) for each in f"{system}|{messages[-1].text}>")

    def extend(self, messages: Sequence[Message], *, closed: bool) -> tuple[int, ...]:
        end = () if closed else (STOP,)
        return (*end, *(ord(each) for each in f"{messages[0].text}>"))

    def decode(self, tokens) -> str:
        return "".join(chr(token) for token in tokens if token != STOP)


def say(text: str):
    """Return a script that always says this."""
    tokens = (*(ord(each) for each in text), STOP)
    return lambda _request: tokens


class Countdown:
    """Ends after `turns` steps; the reward tells the seed apart."""

    def __init__(self, turns: int = 2) -> None:
        self.turns = turns

    def reset(self, seed, task):
        self.seed, self.left = seed, self.turns
        return f"{self.left} left", {}

    def step(self, action):
        self.left -= 1
        return f"{self.left} left", float(self.seed % 2), self.left == 0, False, {}


class InlineCountdown(Countdown):
    inline = True


class AsyncCountdown(Countdown):
    async def reset(self, seed, task):
        await asyncio.sleep(0)
        return super().reset(seed, task)

    async def step(self, action):
        await asyncio.sleep(0)
        return super().step(action)


class Hung(Countdown):
    """Hangs in its thread until the test lets it go."""

    released = threading.Event()

    def step(self, action):
        self.released.wait(10 * BOUND_S)
        return super().step(action)


class Slow(Countdown):
    def step(self, action):
        time.sleep(0.05)
        return super().step(action)


class Crashing(Countdown):
    def step(self, action):
        raise ValueError("the simulator crashed")


CRASHED = (
    "countdown: step raised ValueError: the simulator crashed "
    f"(live_parts.py:{Crashing.step.__code__.co_firstlineno + 1})"
)


def make_setup(make: Callable[[int], Env], **changes) -> Setup:
    values = {
        "make": make,
        "system": "count",
        "limits": EpisodeLimits(max_turns=8, max_tokens=512),
        "sampling": Sampling(max_tokens=8),
        "timeouts": Timeouts(reset_s=BOUND_S, step_s=BOUND_S, episode_s=2 * BOUND_S),
    }
    return Setup(**{**values, **changes})


def make_task(index: int) -> Task:
    return Task(id=index, env="countdown", domain="games", seed=index)


def make_access(generators, *, gate=None, is_fresh=lambda _version: True, closed=()) -> Access:
    return Access(
        renderer=LetterRenderer(),
        engines=EngineClient(
            Router(Routing(), engines=[(id_, "local") for id_ in generators if id_ not in closed]),
            generators=generators,
            now=SystemClock().now,
        ),
        barrier=gate or NoBarrier(),
        is_fresh=is_fresh,
    )


@asynccontextmanager
async def running_proxy(engine=None, *, fetch=None, **options):
    """Run a proxy over a scripted engine until the block ends."""
    engine = engine or ScriptedEngine(say("go"), **options)
    proxy = EngineDriver(engine, id=ENGINE, fetch=fetch or (lambda _version: {}))
    loop = asyncio.create_task(proxy.run())
    try:
        yield proxy
    finally:
        loop.cancel()
        await asyncio.gather(loop, return_exceptions=True)


class CountingTrainer:
    """Counts versions; its weights are the version."""

    def __init__(self, store: str, version: int = 0, step_s: float = 0.0) -> None:
        self._store = open_store("memory", store, KEEP)
        self._version = version
        self._step_s = step_s

    def step(self, batch):
        time.sleep(self._step_s)
        self._version += 1
        return StepReport(
            version=Version(self._version), metrics={"reward": float(batch["rewards"].mean())}
        )

    def publish(self):
        self._store.publish(Version(self._version), {"version": np.array([self._version])})
        return self._version

    def save(self, directory):
        Path(directory).mkdir(parents=True)
        (Path(directory) / "trainer.json").write_text(str(self._version))

    def load(self, directory):
        self._version = int((Path(directory) / "trainer.json").read_text())
        return self._version


@dataclass(kw_only=True)
class Live:
    """A whole run in this process; its log lies in `directory`."""

    rules: Rules
    directory: Path
    make: Callable[[int], Env]
    slots: int = 4
    setup: dict[str, object] = field(default_factory=dict)
    engine: ScriptedEngine | None = None
    lent: ScriptedEngine | None = None
    """An engine on the trainer's hardware, if there is one."""
    trainer: str = "live_parts:CountingTrainer"
    step_s: float = 0.0
    seen: list[tuple[Event, list[Command]]] = field(default_factory=list)
    batches: list[list[list[Trajectory]]] = field(default_factory=list)
    score: Callable[[Trajectory], float] = lambda trajectory: trajectory.reward
    scorer: Scorer | None = None
    """Scores in place of `score`."""
    watch: Callable[["Live", Event], None] = lambda _live, _event: None
    after_event: Callable[[Event, asyncio.TaskGroup], None] = lambda _event, _tasks: None

    def run(self) -> "Live":
        asyncio.run(self._run())
        return self

    async def _run(self) -> None:
        store = open_store("memory", str(self.directory), KEEP)
        host = EmbeddedHost()
        options = {"store": str(self.directory), "step_s": self.step_s}
        trainer = TrainerClient(await host.spawn(self.trainer, options))
        engine = self.engine or ScriptedEngine(say("go"))
        header = LogHeader(seed=self.rules.seed, rules=encode_rules(self.rules))
        try:
            with EventLog(self.directory / "events.jsonl", header) as log:
                async with AsyncExitStack() as stack:
                    open_proxy = partial(running_proxy, fetch=store.fetch)
                    proxies = {ENGINE: await stack.enter_async_context(open_proxy(engine))}
                    if self.lent is not None:
                        proxies[LENT] = await stack.enter_async_context(open_proxy(self.lent))
                        await proxies[LENT].suspend()
                    await self._drive(trainer, proxies, log)
        finally:
            await host.close()

    async def _drive(self, trainer, proxies, log: EventLog) -> None:
        scheduler = Scheduler(self.rules)
        self.controller = Controller(
            scheduler, clock=SystemClock(), observers=[log.append, self._note]
        )
        self.buffer = Buffer(scheduler.is_fresh)
        mode = self.rules.mode
        gate = LockStepBarrier() if mode.lockstep else NoBarrier()
        worker = EnvWorker(
            setups={"countdown": make_setup(self.make, **self.setup)},
            access=make_access(proxies, gate=gate, is_fresh=scheduler.is_fresh, closed=[LENT]),
            tasks=make_task,
            ends=Ends(put=self.buffer.put, post=self.controller.post),
            score_elsewhere=mode.score == "after_rollout",
        )
        parts = Parts(
            worker=worker,
            generators=proxies,
            trainer=trainer,
            buffer=self.buffer,
            encode=lambda groups: encode(groups, temperature=1.0),
            score=self.scorer or in_thread(self.score),
            on_train=self.batches.append,
            after_event=self.after_event,
        )
        engines = tuple(
            EngineInfo(id=id_, pool="local", version=Version(0), lent=id_ == LENT)
            for id_ in proxies
        )
        async with asyncio.timeout(3 * BOUND_S):
            await self.controller.run(parts, engines=engines, slots=self.slots)

    def _note(self, _now: float, event: Event, commands: list[Command]) -> None:
        self.seen.append((event, commands))
        self.watch(self, event)


class HeldTrainer(CountingTrainer):
    """A trainer whose step from one version waits until the test lets it end."""

    version = 0
    released = threading.Event()

    def step(self, batch):
        if self._version == self.version:
            self.released.wait(BOUND_S)
        return super().step(batch)


class BrokenTrainer(CountingTrainer):
    """A trainer whose second step fails."""

    def step(self, batch):
        if self._version == 1:
            raise StorageError("the trainer's disk is full")
        return super().step(batch)
