"""Step rows: a simulated run as one row per optimizer step, the figures a person compares.

Counting tokens and their fate is left to `observe.metrics`, which does it for live runs too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rollart.events import Command, Event
from rollart.observe.metrics import Metrics, Row
from rollart.sim.fleet import Fleet

_WASTED = "wasted/"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One optimizer step."""

    step: int
    ended_s: float
    step_s: float
    """Time since the step before ended."""
    wait_s: float
    """Of that, the time the trainer waited for rollout."""
    train_s: float
    """Of that, the time it trained."""
    tokens_per_s: float
    """Trained tokens, read and sampled, per second."""
    staleness: int
    """The largest of a trained trajectory."""
    utilisation: dict[str, float]
    """Share of the time in which each pool's engines were busy."""
    wasted: dict[str, int]
    """Tokens sampled in vain, by cause."""


class StepRows:
    """An observer that makes the rows."""

    def __init__(self) -> None:
        self.rows: list[StepRow] = []
        self.metrics = Metrics()
        self._fleet: Fleet | None = None
        self._busy_s: dict[str, float] = {}

    def attach(self, fleet: Fleet) -> None:
        """Know the engines whose use is told."""
        self._fleet = fleet

    def __call__(self, now: float, event: Event, commands: Sequence[Command]) -> None:
        """Take in one event and its commands."""
        row = self.metrics.add(now, event, commands)
        if row is not None:
            self.rows.append(self._row(row))

    def _row(self, row: Row) -> StepRow:
        seconds = row["step_s"]
        assert self._fleet is not None
        before, self._busy_s = self._busy_s, self._fleet.busy_s()
        return StepRow(
            step=int(row["step"]),
            ended_s=row["time_s"],
            step_s=seconds,
            wait_s=row["trainer_wait_s"],
            train_s=row["train_s"],
            tokens_per_s=row["trainer/tokens"] / seconds if seconds else 0.0,
            staleness=int(row["staleness_max"]),
            utilisation={
                pool: (busy - before.get(pool, 0.0)) / seconds if seconds else 0.0
                for pool, busy in self._busy_s.items()
            },
            wasted={
                name.removeprefix(_WASTED): int(count)
                for name, count in row.items()
                if name.startswith(_WASTED) and count
            },
        )
