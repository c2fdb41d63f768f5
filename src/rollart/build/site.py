"""Where a run takes place: its engines, trainer and environment workers, as the run sees them.

One machine or a cluster: the run drives the same ports. A site is opened once, before the run
begins, and closed when it has ended, whatever happened between.
"""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rollart.build.assembly import Engines, open_engines, open_trainer, open_weights
from rollart.build.parts import make_evaluator, make_worker
from rollart.config import Config
from rollart.ports import Generator, Handle
from rollart.runtime.buffer import Buffer
from rollart.runtime.controller import Controller, Rollout
from rollart.runtime.env_manager import Setup
from rollart.runtime.evaluation import Evaluator
from rollart.types import EngineId, EngineInfo, Version


class Site(Protocol):
    """The parts of a run, wherever they are."""

    @property
    def infos(self) -> tuple[EngineInfo, ...]:
        """The engines there are."""
        ...

    @property
    def generators(self) -> Mapping[EngineId, Generator]:
        """The engines by id; on a cluster they come and go."""
        ...

    async def trainer(self) -> Handle:
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
        """Take note that an engine is gone."""
        ...

    async def stats(self) -> dict[str, dict[str, float]]:
        """Return the counters of each engine."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedSite:
    """Engines in this process, the trainer in one of its own."""

    config: Config
    engines: Engines
    starting: "asyncio.Task[Handle]"
    """The trainer starts while the engines are evaluated."""

    @property
    def infos(self) -> tuple[EngineInfo, ...]:
        """The engines there are."""
        return self.engines.infos

    @property
    def generators(self) -> Mapping[EngineId, Generator]:
        """The engines by id."""
        return self.engines.proxies

    async def trainer(self) -> Handle:
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
        """Fail: an engine of this process cannot be gone without it."""
        raise AssertionError(f"{engine}: {message}")

    async def stats(self) -> dict[str, dict[str, float]]:
        """Return the counters of each engine."""
        return {id_: dict(proxy.stats()) for id_, proxy in self.engines.proxies.items()}


@asynccontextmanager
async def open_embedded(
    config: Config, *, model: Path, start: Path, version: Version
) -> AsyncGenerator[Site]:
    """Open this machine: the trainer begins with `model`, the engines with `start`'s weights."""
    async with AsyncExitStack() as stack:
        store, opening = stack.enter_context(open_weights(config))
        context = open_trainer(config, model=model, store=opening)
        starting = asyncio.create_task(stack.enter_async_context(context))
        stack.push_async_callback(_give_up, starting)
        engines = await stack.enter_async_context(
            open_engines(config, model=start, version=version, store=store)
        )
        yield EmbeddedSite(config=config, engines=engines, starting=starting)


async def _give_up(starting: "asyncio.Task[Handle]") -> None:
    """End a trainer that was still being made when it was no longer wanted."""
    if not starting.done():
        starting.cancel()
        await asyncio.wait({starting})
