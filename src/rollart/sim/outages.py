"""Outages: engines that die now and then and come back after a repair.

Each engine's times are drawn from its own seed, so they do not depend on what else happens. What a
death and a return mean is up to who is told of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Annotated

from rollart.constraints import AtLeast, check_fields
from rollart.seeds import derive_seed
from rollart.sim.loop import Loop
from rollart.types import EngineId

_OUTAGES = 0x6F75
"""Keeps these draws apart from others of the same seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageOptions:
    """How often engines die, and for how long."""

    mtbf_s: Annotated[float, AtLeast(0)] = 0.0
    """Mean time an engine serves until it dies; 0 is for ever."""
    repair_s: Annotated[float, AtLeast(0)] = 60.0
    """Time until a dead engine is back, with the newest weights loaded."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, "outages")


class Outages:
    """Tells when engines die and return, as their fate has it."""

    def __init__(
        self,
        options: OutageOptions,
        *,
        loop: Loop,
        lose: Callable[[EngineId], None],
        regain: Callable[[EngineId], None],
    ) -> None:
        self._options = options
        self._loop = loop
        self._lose = lose
        self._regain = regain
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
        self._lose(engine)
        self._loop.after(self._options.repair_s, partial(self._return, engine, random))

    def _return(self, engine: EngineId, random: Random) -> None:
        self._regain(engine)
        self._await_death(engine, random)
