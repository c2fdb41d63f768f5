"""Modes: the five schedules, each a row of the same few decisions.

| mode      | rollout         | next groups start            | weights change    | age is bounded |
|-----------|-----------------|------------------------------|-------------------|----------------|
| sync      | lock-step       | when the new weights serve   | engines idle      | 0              |
| sync_plus | per trajectory  | when the new weights serve   | engines idle      | 0              |
| one_off   | per trajectory  | while the last batch trains  | engines idle      | 1              |
| areal     | per trajectory  | within a window              | mid-trajectory    | at the start   |
| rollart   | per trajectory  | within a window              | mid-trajectory    | at every turn  |
"""

from dataclasses import dataclass, replace
from typing import Literal

from rollart.control.staleness import Staleness
from rollart.errors import ConfigError

ModeName = Literal["sync", "sync_plus", "one_off", "areal", "rollart"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """One schedule."""

    name: ModeName
    admission: Literal["iteration", "window"]
    """Start groups batch by batch, or whenever the window of outstanding groups has room."""
    lockstep: bool
    """Every running environment takes its turn together."""
    score: Literal["after_rollout", "at_once"]
    """Run reward functions when the whole batch has rolled out, or as each trajectory ends."""
    update: Literal["idle", "at_once"]
    """Change engine weights only when nothing runs, or as soon as they are published."""
    bound: Literal["start", "always"]
    """Where the staleness bound is held: only at the door, or until the trainer takes the work."""
    affinity: bool
    """Route by task domain to the pool that fits it."""
    alpha: int | None
    """The staleness bound the schedule implies; None takes the config's."""

    def staleness(self, configured: Staleness) -> Staleness:
        """Return the staleness rule this mode runs with."""
        if self.alpha is None:
            return configured
        return replace(configured, alpha=self.alpha, window="served")


SYNC = Mode(
    name="sync",
    admission="iteration",
    lockstep=True,
    score="after_rollout",
    update="idle",
    bound="always",
    affinity=False,
    alpha=0,
)
SYNC_PLUS = replace(SYNC, name="sync_plus", lockstep=False, score="at_once")
ONE_OFF = replace(SYNC_PLUS, name="one_off", alpha=1)
AREAL = replace(
    ONE_OFF, name="areal", admission="window", update="at_once", bound="start", alpha=None
)
ROLLART = replace(AREAL, name="rollart", bound="always", affinity=True)

MODES: dict[str, Mode] = {mode.name: mode for mode in (SYNC, SYNC_PLUS, ONE_OFF, AREAL, ROLLART)}


def mode_named(name: str) -> Mode:
    """Return a mode by its name."""
    if name not in MODES:
        raise ConfigError("run.mode", name, f"must be one of {', '.join(MODES)}")
    return MODES[name]
