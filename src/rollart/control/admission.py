"""Admission: whether another group may start now.

In iterations (sync, sync_plus, one_off) a batch's groups start together, and the next batch starts
when this one has rolled out and the served weights are at most `alpha` behind. In a window (areal,
rollart) a group starts whenever fewer are outstanding than the trainer can consume within `alpha`
steps. Either way no group starts that the run's remaining steps could not train.
"""

from dataclasses import dataclass, replace

from rollart.control.batching import Batching
from rollart.control.modes import Mode
from rollart.control.redundancy import Redundancy
from rollart.control.staleness import Staleness
from rollart.types import Version


@dataclass(slots=True, kw_only=True)
class Admission:
    """Counts groups by where they are, and opens the door for more."""

    mode: Mode
    batching: Batching
    staleness: Staleness
    redundancy: Redundancy
    rolling: int = 0
    """Groups that have not completed."""
    ready: int = 0
    """Complete groups waiting to be trained."""
    consumed: int = 0
    """Groups in training, or trained but with their weights not yet served."""
    iteration: int = 0
    iteration_complete: int = 0
    """Groups of the current iteration that completed and were kept."""

    def may_open(self, *, steps_left: int, served: Version) -> bool:
        """Say whether another group may start; moves to the next iteration when it is time."""
        per_step, extra = self.batching.groups_per_step, self.redundancy.extra_groups
        if self.rolling + self.ready >= steps_left * per_step + extra:
            return False
        if self.mode.admission == "window":
            untrained = self.rolling + self.ready - extra
            free = self.staleness.free_groups(
                untrained, consumed=self.consumed, groups_per_step=per_step
            )
            return free > 0
        if self.is_iteration_complete:
            if self.rolling or served < self.iteration + 1 - self.staleness.alpha:
                return False
            self.iteration += 1
            self.iteration_complete = 0
        return self.iteration_complete + self.rolling < per_step + extra

    @property
    def is_iteration_complete(self) -> bool:
        """Whether the current iteration has the groups its batch needs."""
        return self.iteration_complete >= self.batching.groups_per_step

    @property
    def has_batch_to_come(self) -> bool:
        """Whether more is rolling than may be left behind: a step need not wait for the surplus."""
        return self.rolling > self.redundancy.extra_groups

    def resume(self, version: Version) -> None:
        """Find the iteration that the groups taken in from an earlier run belong to.

        The earlier run may have had another mode or batch, so it is told from the groups alone:
        every iteration gives one batch, and every batch one version.
        """
        whole, part = divmod(self.ready, self.batching.groups_per_step)
        if whole and not part and not self.rolling:
            whole, part = whole - 1, self.batching.groups_per_step
        self.iteration, self.iteration_complete = version + whole, part

    def go_by(self, *, alpha: int, extra_groups: int) -> None:
        """Open groups by these levels from now on."""
        self.staleness = replace(self.staleness, alpha=alpha)
        self.redundancy = replace(self.redundancy, extra_groups=extra_groups)

    def open(self) -> None:
        """Count a group that starts."""
        self.rolling += 1

    def lose(self) -> None:
        """Count a ready group that is dropped: its iteration needs another."""
        self.ready -= 1
        self.iteration_complete -= 1
        if self.iteration_complete < 0:
            self.iteration -= 1
            self.iteration_complete += self.batching.groups_per_step

    def complete(self) -> bool:
        """Count a group that completed; return whether those still rolling are surplus."""
        self.rolling -= 1
        self.ready += 1
        self.iteration_complete += 1
        return self.mode.admission == "iteration" and self.is_iteration_complete
