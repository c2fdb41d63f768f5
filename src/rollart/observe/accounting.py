"""Accounting: the seconds and tokens a run has spent, including those before a resume.

Each second is counted once. While an evaluation runs, even next to rollout, its seconds count as
evaluation and not as training, so the parts never add up to more than the run took.
"""

from collections import Counter, defaultdict
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from rollart.clock import Clock, SystemClock
from rollart.observe.ledger import Ledger
from rollart.types import Json


class Accounting:
    """Counts what a run has spent, by purpose."""

    def __init__(self, ledger: Ledger, clock: Clock | None = None) -> None:
        self._ledger = ledger
        self._clock = SystemClock() if clock is None else clock
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._counted_s = 0.0
        """The time up to which seconds have been counted."""
        self._is_training = False
        self._evaluations = 0
        """Evaluations running now."""
        self._trained = 0
        self._wasted: Counter[str] = Counter()

    def go_on(self, before: Mapping[str, Any]) -> None:
        """Add what `total` returned before the run was resumed."""
        for what, seconds in before["seconds"].items():
            self.note(what, seconds)
        self._trained += before["tokens"]["trained"]
        self._wasted.update(before["tokens"]["wasted"])

    def note(self, what: str, seconds: float) -> None:
        """Add the seconds that something took."""
        self._seconds[what] += seconds

    def begin_training(self) -> None:
        """Count the time from now on as training."""
        self._count()
        self._is_training = True

    def end_training(self) -> None:
        """Stop counting time as training."""
        self._count()
        self._is_training = False

    @contextmanager
    def evaluating(self) -> Generator[None]:
        """Count the time of the block as evaluation; concurrent evaluations count once."""
        self._count()
        self._evaluations += 1
        try:
            yield
        finally:
            self._count()
            self._evaluations -= 1

    def total(self) -> dict[str, Json]:
        """Return what has been spent so far."""
        self._count()
        wasted = self._wasted + self._ledger.wasted
        return {
            "seconds": {what: round(seconds, 2) for what, seconds in self._seconds.items()},
            "tokens": {"trained": self._trained + self._ledger.trained, "wasted": dict(wasted)},
        }

    def _count(self) -> None:
        """Add the time since the last count to its purpose."""
        now_s = self._clock.now()
        if self._evaluations:
            self.note("evaluation", now_s - self._counted_s)
        elif self._is_training:
            self.note("training", now_s - self._counted_s)
        self._counted_s = now_s
