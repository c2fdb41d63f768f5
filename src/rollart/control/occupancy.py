"""Occupancy: how much of the time the environments of a run had something to do."""

from dataclasses import dataclass


@dataclass(slots=True, kw_only=True)
class Occupancy:
    """How much of the environments' time is used, since a moment."""

    places: int = 0
    since_s: float = 0.0
    taken: int = 0
    used_s: float = 0.0
    _at_s: float = 0.0

    def move(self, now: float, change: int) -> None:
        """Note that so many environments more, or fewer, are in use."""
        self.used_s += self.taken * (now - self._at_s)
        self._at_s = now
        self.taken += change

    def idle_share(self, now: float) -> float:
        """Return the share of the time that was not used."""
        self.move(now, 0)
        return max(0.0, 1 - self.used_s / (self.places * (now - self.since_s)))

    def restart(self, now: float) -> None:
        """Count from now on."""
        self.move(now, 0)
        self.used_s, self.since_s = 0.0, now
