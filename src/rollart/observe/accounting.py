"""Spending: the seconds and tokens of a run, those before a resume included.

A second is counted once: while an evaluation is under way, beside rollout or not, it is the
evaluation's and not training's. So the parts never come to more than the run took.
"""

from collections import Counter, defaultdict
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from rollart.clock import Clock, SystemClock
from rollart.observe.ledger import Ledger
from rollart.types import Json


class Accounting:
    """What a run has spent, by what it was spent on."""

    def __init__(self, ledger: Ledger, clock: Clock | None = None) -> None:
        self._ledger = ledger
        self._clock = SystemClock() if clock is None else clock
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._counted_s = 0.0
        """Until when the time was counted."""
        self._is_training = False
        self._evaluations = 0
        """Those under way."""
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
        self._count()
        self._is_training = True

    def end_training(self) -> None:
        """Note that training ended, if it had begun."""
        self._count()
        self._is_training = False

    @contextmanager
    def evaluating(self) -> Generator[None]:
        """Count the time of the block as an evaluation's; that of several at once counts once."""
        self._count()
        self._evaluations += 1
        try:
            yield
        finally:
            self._count()
            self._evaluations -= 1

    def total(self) -> dict[str, Json]:
        """Return what was spent until now."""
        self._count()
        wasted = self._wasted + self._ledger.wasted
        return {
            "seconds": {what: round(seconds, 2) for what, seconds in self._seconds.items()},
            "tokens": {"trained": self._trained + self._ledger.trained, "wasted": dict(wasted)},
        }

    def _count(self) -> None:
        """Add the time since the last count to what went on in it."""
        now_s = self._clock.now()
        if self._evaluations:
            self.note("evaluation", now_s - self._counted_s)
        elif self._is_training:
            self.note("training", now_s - self._counted_s)
        self._counted_s = now_s
