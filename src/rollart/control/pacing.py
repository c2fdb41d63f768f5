"""Pacing: whether a step waits for running work that it would make too old.

`staleness.at_bound` says how: never, until the work has come, or no longer than `patience_s` from
the moment the step could have begun.
"""

from rollart.control.cohort import Cohort
from rollart.control.rules import Rules
from rollart.control.staleness import Staleness
from rollart.types import Version


class Hold:
    """The wait before a step, if there is one."""

    def __init__(self, rules: Rules, *, bound: Staleness) -> None:
        self._bound = bound
        self._is_possible = bound.at_bound != "drop" and rules.mode.bound == "always"
        self._groups_per_step = rules.batching.groups_per_step
        self.until_s: float | None = None
        """When patience ends, if the step waits and has one."""

    def is_wanted(self, cohort: Cohort, *, optimizer: Version) -> bool:
        """Say whether a step from `optimizer` had better wait."""
        return self._is_possible and self._bound.should_hold(
            rolling=cohort.rolling_ages,
            ready=cohort.ready_ages,
            optimizer=optimizer,
            groups_per_step=self._groups_per_step,
        )

    def holds(self, cohort: Cohort, *, optimizer: Version, now: float) -> bool:
        """Say whether a step that could begin now waits."""
        if not self.is_wanted(cohort, optimizer=optimizer):
            self.until_s = None
            return False
        if self._bound.at_bound == "wait":
            return True
        if self.until_s is None:
            self.until_s = now + self._bound.patience_s
        return now < self.until_s

    def end(self) -> None:
        """Note that the step begins; the next one has its own patience."""
        self.until_s = None
