"""Outages: engines that die now and then and come back after a repair.

Each engine's times are drawn from its own seed, so they do not depend on what else happens. A dead
engine is closed to requests; those it had go on elsewhere. It stays an engine to the scheduler and
answers weight changes at once, so nothing waits for it, and it returns with the weights it was
last told to load.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Protocol

from rollart.errors import ConfigError
from rollart.seeds import derive_seed
from rollart.sim.loop import Loop
from rollart.types import EngineId

_OUTAGES = 0x6F75
"""Keeps these draws apart from others of the same seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageOptions:
    """How often engines die, and for how long."""

    mtbf_s: float = 0.0
    """Mean time an engine serves until it dies; 0 is for ever."""
    repair_s: float = 60.0
    """Time until a dead engine serves again, its weights loaded."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("mtbf_s", "repair_s"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"outages.{name}", getattr(self, name), "must be at least 0")


class Doors(Protocol):
    """Lets engines be routed to, or not."""

    def open(self, id_: EngineId) -> None:
        """Let an engine be routed to."""
        ...

    def close(self, id_: EngineId) -> None:
        """Route no more to an engine; its jobs go on elsewhere with what they have."""
        ...


class Outages:
    """Closes and opens engines as their fate has it."""

    def __init__(self, options: OutageOptions, *, loop: Loop, doors: Doors) -> None:
        self._options = options
        self._loop = loop
        self._doors = doors
        self.down: set[EngineId] = set()
        """Engines that are dead now."""
        self.count = 0
        """Deaths so far."""

    def start(self, engines: Sequence[EngineId]) -> None:
        """Decide when each engine first dies."""
        if self._options.mtbf_s:
            for number, engine in enumerate(engines):
                random = Random(derive_seed(self._options.seed, _OUTAGES, number))
                self._await_death(engine, random)

    def _await_death(self, engine: EngineId, random: Random) -> None:
        seconds = random.expovariate(1 / self._options.mtbf_s)
        self._loop.after(seconds, partial(self._die, engine, random))

    def _die(self, engine: EngineId, random: Random) -> None:
        self.count += 1
        self.down.add(engine)
        self._doors.close(engine)
        self._loop.after(self._options.repair_s, partial(self._return, engine, random))

    def _return(self, engine: EngineId, random: Random) -> None:
        self.down.discard(engine)
        self._doors.open(engine)
        self._await_death(engine, random)
