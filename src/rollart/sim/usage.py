"""Pool use: how busy each pool of engines and the trainer were over the time of a run.

Busy time is added to bins of equal width. The length of a run is not known before it ends, so when
the bins run out their width is doubled and neighbours are merged: there are never more than
`LIMIT`, and no busy time is lost.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rollart.events import Command, Event, StepFinished, Train
from rollart.sim.fleet import Fleet

LIMIT = 400
TRAINER = "trainer"


class Bins:
    """Busy seconds in bins of equal width."""

    def __init__(self, *, width_s: float = 1.0, limit: int = LIMIT) -> None:
        self.width_s = width_s
        self.busy_s = [0.0]
        self._limit = limit

    def add(self, begin: float, end: float) -> None:
        """Add a busy interval."""
        self.reach(end)
        width = self.width_s
        number = int(begin / width)
        while begin < end:
            until = min(end, (number + 1) * width)
            self.busy_s[number] += max(0.0, until - begin)
            begin, number = max(begin, until), number + 1

    def reach(self, end: float) -> None:
        """Extend the bins to this time."""
        while end >= self._limit * self.width_s:
            odd = [*self.busy_s[1::2], 0.0]
            self.busy_s = [a + b for a, b in zip(self.busy_s[::2], odd, strict=False)]
            self.width_s *= 2
        missing = int(end / self.width_s) + 1 - len(self.busy_s)
        self.busy_s += [0.0] * missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The use of one pool over time.

    Example:
        Series(workers=8, shares=(0.4, 0.95, 1.0), width_s=60.0)

    """

    workers: int
    shares: tuple[float, ...]
    """Share of the workers' time in each bin that they were busy."""
    width_s: float


class PoolUse:
    """Records busy intervals of engines and, as an observer, of the trainer."""

    def __init__(self) -> None:
        self._bins: dict[str, Bins] = {}
        self._workers: dict[str, int] = {}
        self._train_since: float | None = None
        self._fleet: Fleet | None = None

    def attach(self, fleet: Fleet) -> None:
        """Watch every engine of a fleet."""
        self._fleet = fleet
        for member in fleet.members.values():
            bins = self._bins.setdefault(member.pool, Bins())
            member.engine.watch(bins.add)
            workers = self._workers.get(member.pool, 0)
            self._workers[member.pool] = workers + member.engine.workers
        self._bins[TRAINER] = Bins()
        self._workers[TRAINER] = 1

    def __call__(self, now: float, event: Event, commands: Sequence[Command]) -> None:
        """Note when training starts and ends."""
        if isinstance(event, StepFinished) and self._train_since is not None:
            self._bins[TRAINER].add(self._train_since, now)
            self._train_since = None
        for command in commands:
            if isinstance(command, Train):
                self._train_since = now

    def series(self, now: float) -> Mapping[str, Series]:
        """Return the use of each pool and of the trainer until now."""
        assert self._fleet is not None
        for member in self._fleet.members.values():
            member.engine.flush()
        if self._train_since is not None:
            self._bins[TRAINER].add(self._train_since, now)
            self._train_since = now
        return {name: self._pool_series(name, bins, now) for name, bins in self._bins.items()}

    def _pool_series(self, name: str, bins: Bins, now: float) -> Series:
        bins.reach(now)
        width, workers = bins.width_s, self._workers[name]
        spans = (min(width, now - number * width) for number in range(len(bins.busy_s)))
        shares = tuple(
            busy / (workers * span) if span > 0 else 0.0
            for busy, span in zip(bins.busy_s, spans, strict=True)
        )
        return Series(workers=workers, shares=shares, width_s=width)
