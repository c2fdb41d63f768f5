"""Parts that cost nothing: an engine that knows its answer, a world that says yes, a renderer.

What is left of a turn is what the system itself costs. Collection is frozen as in a real run.
"""

import gc
from collections.abc import Mapping, Sequence
from typing import Any

from rollart.clock import SystemClock
from rollart.cluster.engine_server import EngineMessage, EngineServer
from rollart.cluster.env_actor import EnvServer
from rollart.control.routing import Router, Routing
from rollart.control.task_order import TaskKind, TaskMix
from rollart.inference.driver import EngineDriver
from rollart.inference.scripted import ScriptedEngine
from rollart.ports import Array, Engine
from rollart.rollout.barrier import NoBarrier
from rollart.rollout.engine_client import EngineClient
from rollart.rollout.env_manager import Access, Setup
from rollart.rollout.env_slot import Timeouts
from rollart.rollout.env_worker import Ends, EnvWorker
from rollart.types import (
    EngineId,
    EpisodeLimits,
    Json,
    Message,
    Request,
    Sampling,
    StepReport,
    Version,
)

TURNS = 10
STOP = 0
_ANSWER = (5, 6, 7, STOP)
MIX = TaskMix([TaskKind(name="free", domain="free")], seed=1)


class FreeWorld:
    """Ends after some turns; each takes a microsecond."""

    inline = True

    def __init__(self, turns: int = TURNS, observation: str = "go on") -> None:
        self._turns = turns
        self._observation = observation
        self._left = turns

    def reset(self, seed: int, task: Mapping[str, Json]) -> tuple[str, dict[str, Json]]:
        """Start an episode."""
        self._left = self._turns
        return self._observation, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Json]]:
        """Take a turn."""
        self._left -= 1
        return self._observation, 1.0, self._left == 0, False, {}


class LetterRenderer:
    """One token a letter."""

    stop = (STOP,)

    def start(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Return the opening."""
        return tuple(messages[-1].text.encode())

    def extend(self, messages: Sequence[Message], *, closed: bool) -> tuple[int, ...]:
        """Return what follows a completion."""
        return tuple(messages[-1].text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        """Return an action."""
        return "yes"


def answer(request: Request) -> tuple[int, ...]:
    return _ANSWER


def free_engine() -> Engine:
    return ScriptedEngine(answer, tokens_per_step=len(_ANSWER))


def make_proxy(engine: Engine, name: str) -> EngineDriver:
    return EngineDriver(engine, id=EngineId(name), fetch=lambda _version: {})


def setup(*, turns: int = TURNS, observation: str = "go on", sampled: int = 8) -> Setup:
    return Setup(
        make=lambda _slot: FreeWorld(turns, observation),
        system="",
        limits=EpisodeLimits(max_turns=64, max_tokens=1 << 20),
        sampling=Sampling(max_tokens=sampled),
        timeouts=Timeouts(reset_s=60.0, step_s=60.0, episode_s=600.0),
    )


def make_worker(
    ends: Ends,
    *,
    engines: EngineClient,
    setups: Mapping[str, Setup] | None = None,
    mix: TaskMix = MIX,
) -> EnvWorker:
    access = Access(
        renderer=LetterRenderer(),
        engines=engines,
        barrier=NoBarrier(),
        is_fresh=lambda _version: True,
    )
    return EnvWorker(setups=setups or {"free": setup()}, access=access, tasks=mix.task, ends=ends)


class FreeEngine(EngineServer):
    """The engine in a process of its own; it counts the calls that reach it."""

    def __init__(self, *, name: str) -> None:
        super().__init__(make_proxy(free_engine(), name))
        self._calls = 0

    async def exchange(
        self, caller: str, number: int, messages: Sequence[EngineMessage]
    ) -> list[Any]:
        """Count a call and serve it."""
        self._calls += 1
        return await super().exchange(caller, number, messages)

    async def calls(self) -> int:
        """Return how many calls came."""
        return self._calls


class FreeEnvironments(EnvServer):
    """An environment worker in a process of its own."""

    def __init__(self, *, name: str) -> None:
        gc.collect()
        gc.freeze()  # as an environment actor does
        super().__init__(_make, name=name)


def _make(ends: Ends) -> tuple[EnvWorker, EngineClient]:
    engines = EngineClient(Router(Routing(), engines=()), generators={}, now=SystemClock().now)
    return make_worker(ends, engines=engines), engines


class FreeTrainer:
    """Makes the next version of nothing, at once."""

    def __init__(self) -> None:
        self._version = 0

    async def step(self, batch: Mapping[str, Array]) -> StepReport:
        """Answer at once."""
        del batch
        self._version += 1
        return StepReport(version=Version(self._version), metrics={})

    async def publish(self) -> Version:
        """Answer at once."""
        return Version(self._version)

    async def save(self, directory: str) -> None:
        """Do nothing."""

    async def load(self, directory: str) -> Version:
        """Answer at once."""
        del directory
        return Version(self._version)

    async def close(self) -> None:
        """Do nothing."""
