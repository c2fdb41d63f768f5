"""Busy time: when something worked, in all and interval by interval."""

from collections.abc import Callable

Watcher = Callable[[float, float], None]
"""Told of the begin and the end of an interval."""


class BusyTime:
    """Adds up the intervals in which something worked."""

    __slots__ = ("_total_s", "since", "watcher")

    def __init__(self) -> None:
        self.since: float | None = None
        """Begin of the interval in progress; None: it does not work."""
        self.watcher: Watcher | None = None
        self._total_s = 0.0

    def begin(self, now: float) -> None:
        """Work from now on, if it did not."""
        if self.since is None:
            self.since = now

    def end(self, now: float) -> None:
        """Work no more, if it did."""
        since = self.since
        if since is not None:
            self.since = None
            self._total_s += now - since
            if self.watcher is not None:
                self.watcher(since, now)

    def flush(self, now: float) -> None:
        """Tell of the interval so far and go on."""
        if self.since is not None:
            self.end(now)
            self.begin(now)

    def total_s(self, now: float) -> float:
        """Return the time it has worked."""
        return self._total_s if self.since is None else self._total_s + now - self.since
