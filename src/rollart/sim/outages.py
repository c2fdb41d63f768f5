"""Outages: engines that fail now and then and return after a repair.

Each engine's failure times are drawn from a seed of its own, so they do not depend on anything else
that happens in the run. What a failure and a return do is decided by the two callbacks.
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
"""Makes these draws independent of others with the same seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutageOptions:
    """How often engines fail, and for how long.

    Example:
        OutageOptions(mtbf_s=86_400.0, repair_s=60.0, seed=1)  # each engine fails about once a day

    """

    mtbf_s: Annotated[float, AtLeast(0)] = 0.0
    """Mean time between failures of one engine; 0: engines never fail."""
    repair_s: Annotated[float, AtLeast(0)] = 60.0
    """Time until a failed engine is back, with the newest weights loaded."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_fields(self, "outages")


class Outages:
    """Calls `lose` when an engine fails and `regain` when it returns."""

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
        """Failures so far."""

    def start(self, engines: Sequence[EngineId]) -> None:
        """Schedule the first failure of each engine."""
        if self._options.mtbf_s:
            for number, engine in enumerate(engines):
                random = Random(derive_seed(self._options.seed, _OUTAGES, number))
                self._schedule_failure(engine, random)

    def _schedule_failure(self, engine: EngineId, random: Random) -> None:
        seconds = random.expovariate(1 / self._options.mtbf_s)
        self._loop.after(seconds, partial(self._fail, engine, random))

    def _fail(self, engine: EngineId, random: Random) -> None:
        self.count += 1
        self._lose(engine)
        self._loop.after(self._options.repair_s, partial(self._repair, engine, random))

    def _repair(self, engine: EngineId, random: Random) -> None:
        self._regain(engine)
        self._schedule_failure(engine, random)
