"""Latencies: percentiles over the most recent ones."""

from collections import deque

_KEPT = 4096
_RENEWED_EVERY = 32
_FEWEST = 20


class Latencies:
    """The most recent latencies, in seconds."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_KEPT)
        self._sorted: list[float] = []
        self._added = 0

    def add(self, seconds: float) -> None:
        """Take one more."""
        self._recent.append(seconds)
        self._added += 1

    def percentile(self, share: float) -> float:
        """Return the latency that a share of all did not exceed; 0 if there was none."""
        return _at(sorted(self._recent), share)

    def usual(self, share: float) -> float | None:
        """Return the percentile of a little while ago, cheaply; None while few are known."""
        if self._added < _FEWEST:
            return None
        if not self._sorted or self._added % _RENEWED_EVERY == 0:
            self._sorted = sorted(self._recent)
        return _at(self._sorted, share)


def _at(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
