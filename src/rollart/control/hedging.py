"""Hedging: redundancy only where it is needed, when an attempt runs much longer than usual.

The usual time is a running mean of the attempts that finished, in which no single one weighs
much. An attempt overdue gets a rival in another slot, and its group takes whichever finish first;
a slot whose attempt was overtaken rests like one that failed, so a slow environment costs little.
"""

from heapq import heapify, heappop, heappush

from rollart.types import TrajectoryId

_WEIGHT = 0.05
_MOST = 4.0


class Hedges:
    """Knows how long attempts usually take and which are overdue."""

    def __init__(self, after: float) -> None:
        self._after = after
        self._usual_s: float | None = None
        self._due: list[tuple[float, TrajectoryId]] = []
        self._launched: dict[TrajectoryId, float] = {}

    def launch(self, attempt: TrajectoryId, now: float) -> None:
        """Note that an attempt starts."""
        if self._after:
            self._launched[attempt] = now
            if self._usual_s is not None:
                heappush(self._due, (now + self._after * self._usual_s, attempt))

    def finish(self, attempt: TrajectoryId, now: float) -> None:
        """Note that an attempt finished by itself, and how long that takes."""
        if not self._after:
            return
        took_s = max(0.0, now - self._launched.pop(attempt))
        if self._usual_s is None:
            self._usual_s = took_s
            self._due = [
                (start + self._after * took_s, each) for each, start in self._launched.items()
            ]
            heapify(self._due)
        else:
            self._usual_s += _WEIGHT * (min(took_s, _MOST * self._usual_s) - self._usual_s)

    def stop(self, attempt: TrajectoryId, now: float) -> bool:
        """Note that an attempt failed or was cancelled; return whether it was overdue."""
        if not self._after:
            return False
        ran_s = now - self._launched.pop(attempt)
        return self._usual_s is not None and ran_s > self._after * self._usual_s

    def overdue(self, now: float) -> list[TrajectoryId]:
        """Return the attempts that have become overdue, each once."""
        found: list[TrajectoryId] = []
        while self._due and self._due[0][0] <= now:
            attempt = heappop(self._due)[1]
            start = self._launched.get(attempt)
            if start is None:
                continue
            due_s = start + self._after * (self._usual_s or 0.0)
            if due_s <= now:
                found.append(attempt)
            else:
                heappush(self._due, (due_s, attempt))
        return found

    @property
    def next_s(self) -> float | None:
        """When the next attempt may be overdue."""
        return self._due[0][0] if self._due else None
