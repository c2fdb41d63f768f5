"""Scores: what reward functions took and gave, folded from events and commands.

A latency runs from the `Score` that asked to the answer. The parts of a reward are kept until its
trajectory leaves the buffer.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rollart.events import Command, Drop, Event, Score, ScoreFailed, TrajectoryScored
from rollart.types import TrajectoryId

_NOTHING: Mapping[str, float] = {}


class Scores:
    """Counts scores since the last row."""

    def __init__(self) -> None:
        self.failures: Counter[str] = Counter()
        """Why scores failed, since the start."""
        self._asked: dict[TrajectoryId, float] = {}
        self._parts: dict[TrajectoryId, Mapping[str, float]] = {}
        self._latencies: list[float] = []
        self._counts: Counter[str] = Counter()
        self._is_used = False

    def add(self, now: float, event: Event, commands: Sequence[Command]) -> None:
        """Fold one record in."""
        match event:
            case TrajectoryScored(id=id_, parts=parts):
                self._answer(now, id_, "scored")
                if parts:
                    self._parts[id_] = parts
            case ScoreFailed(id=id_, message=message):
                self._answer(now, id_, "failed")
                self.failures[message] += 1
            case _:
                pass
        for command in commands:
            match command:
                case Score(ids=ids):
                    self._is_used = True
                    self._asked.update(dict.fromkeys(ids, now))
                case Drop(ids=ids):
                    self.take(ids)
                case _:
                    pass

    def take(self, ids: Iterable[TrajectoryId]) -> dict[TrajectoryId, Mapping[str, float]]:
        """Hand over the parts of trajectories that leave the buffer."""
        return {id_: self._parts.pop(id_, _NOTHING) for id_ in ids}

    def row(self, batch: Iterable[Mapping[str, float]]) -> dict[str, float]:
        """Return the figures since the last row and the mean of each part over a batch."""
        if not self._is_used:
            return {}
        ordered = sorted(self._latencies)
        row: dict[str, float] = {
            "reward/scored": self._counts["scored"],
            "reward/failed": self._counts["failed"],
            "reward/in_flight": len(self._asked),
            "reward/latency_p50_s": _percentile(ordered, 0.50),
            "reward/latency_p99_s": _percentile(ordered, 0.99),
        }
        values: dict[str, list[float]] = {}
        for parts in batch:
            for name, value in parts.items():
                values.setdefault(name, []).append(value)
        row |= {f"reward/part/{name}": sum(each) / len(each) for name, each in values.items()}
        self._latencies, self._counts = [], Counter()
        return row

    def _answer(self, now: float, id_: TrajectoryId, how: str) -> None:
        self._counts[how] += 1
        self._latencies.append(now - self._asked.pop(id_, now))


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
