"""Spending: the seconds and tokens of a run, those before a resume included."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from rollart.clock import SystemClock
from rollart.observe.ledger import Ledger
from rollart.types import Json


class Spending:
    """What a run has spent, by what it was spent on."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._training: SystemClock | None = None
        self._trained = 0
        self._wasted: Counter[str] = Counter()

    def go_on(self, before: Mapping[str, Any]) -> None:
        """Count on from what `total` returned in the part of the run before."""
        for what, seconds in before["seconds"].items():
            self.note(what, seconds)
        self._trained += before["tokens"]["trained"]
        self._wasted.update(before["tokens"]["wasted"])

    def note(self, what: str, seconds: float) -> None:
        """Add what something took."""
        self._seconds[what] += seconds

    def begin_training(self) -> None:
        """Note that training begins, which is counted as it goes."""
        self._training = SystemClock()

    def end_training(self) -> None:
        """Note that training ended, if it had begun."""
        if self._training is not None:
            self.note("training", self._training.now())
            self._training = None

    def total(self) -> dict[str, Json]:
        """Return what was spent until now."""
        running = {} if self._training is None else {"training": self._training.now()}
        names = dict.fromkeys([*self._seconds, *running])
        wasted = self._wasted + self._ledger.wasted
        return {
            "seconds": {
                name: round(self._seconds.get(name, 0.0) + running.get(name, 0.0), 2)
                for name in names
            },
            "tokens": {"trained": self._trained + self._ledger.trained, "wasted": dict(wasted)},
        }
