"""Durations: how long attempts take, by domain, and when one is late.

A group takes as long as its slowest member, so a domain is judged by its mean and its spread.
"""

from math import inf, sqrt

_WEIGHT = 0.05
"""What one attempt counts once many are known."""
_SPREADS = 2.0
"""Standard deviations above the mean at which a group's slowest member is expected."""
_LATE = 2.0
"""An attempt is late after this many times what a group's slowest member is expected to take."""
_ENOUGH = 8
"""Attempts after which one is held against the mean."""


class Durations:
    """How long the attempts of each domain take, the latest counting most."""

    def __init__(self, *, most: float = inf) -> None:
        """Take how many means one attempt counts for at most, once enough are known."""
        self._most = most
        self.known: dict[str, tuple[int, float, float]] = {}
        """Attempts counted, mean and variance in seconds, by domain."""

    def note(self, domain: str, took_s: float) -> None:
        """Count an attempt that finished."""
        count, mean_s, variance = self.known.get(domain, (0, 0.0, 0.0))
        if count >= _ENOUGH and 0 < self._most * mean_s < took_s:
            took_s = self._most * mean_s
        weight = max(_WEIGHT, 1 / (count + 1))
        off_s = took_s - mean_s
        variance = (1 - weight) * (variance + weight * off_s * off_s)
        self.known[domain] = (count + 1, mean_s + weight * off_s, variance)

    def note_cancelled(self, domain: str, ran_s: float) -> None:
        """Count an attempt that was stopped, if it had already run longer than usual."""
        if ran_s > self.known.get(domain, (0, inf, 0.0))[1]:
            self.note(domain, ran_s)

    def expected_s(self, domain: str) -> float:
        """Return how long a group's slowest member is expected to take; inf if nothing is known."""
        if domain not in self.known:
            return inf
        _, mean_s, variance = self.known[domain]
        return mean_s + _SPREADS * sqrt(variance)

    def late_s(self, domain: str) -> float:
        """Return after how long an attempt is late.

        Where nothing is known of a domain, that is as for the slowest; inf if of none.
        """
        domains = (domain,) if domain in self.known else self.known
        return _LATE * max(map(self.expected_s, domains), default=inf)
