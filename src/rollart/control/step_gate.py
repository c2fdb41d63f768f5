"""StepGate: whether a step waits for running work that it would make too old.

`staleness.at_bound` says how: never, until the work has finished, or while it can be expected to
finish and no longer than `patience_s` from the moment the step could have begun.

What can be expected is decided once, when the wait begins: groups with enough attempts that are
not late. As many of those may be lost as redundancy starts in excess. The wait ends when no more
than that are outstanding, when the rest is late, or when patience runs out. So a wait always ends.
"""

from typing import cast

from rollart.control.groups import GroupTable
from rollart.control.rules import Rules
from rollart.control.staleness import Staleness
from rollart.control.task_order import AttemptDurations
from rollart.types import Version


class StepGate:
    """The wait before a step, if there is one."""

    def __init__(
        self, rules: Rules, *, bound: Staleness, groups: GroupTable, usual: AttemptDurations
    ) -> None:
        self._bound = bound
        self._batching = rules.batching
        self._groups = groups
        self._usual = usual
        self._waits_for_all = bound.at_bound in ("wait", "finish")
        # Counted against the weights served, work would age during the wait.
        paces = bound.at_bound == "pace" and bound.counting == "optimizer"
        self._is_possible = rules.mode.bound == "always" and (self._waits_for_all or paces)
        self._seen = (0, 0, 0)
        self._since_s = 0.0
        self._held_s = 0.0
        self.until_s: float | None = None
        """When the wait ends at the latest, if it does without the work."""
        self.is_on = False
        """Whether the next step waits."""

    def must_wait(self, *, optimizer: Version, now: float) -> bool:
        """Say whether a step from `optimizer` that could begin now waits."""
        if not self._is_possible:
            return False
        # A wait lasts while no group completes or is dropped.
        admission = self._groups.admission
        seen = (admission.ready, admission.rolling, self._groups.next_group)
        is_over = self.until_s is not None and now >= self.until_s
        if not self.is_on or seen != self._seen or is_over:
            self._seen = seen
            self._turn(now, is_on=self._may_save_work(optimizer, now))
        return self.is_on

    def end(self, now: float) -> float:
        """Note that the step begins; return how long it waited, and count from 0 again."""
        self._turn(now, is_on=False)
        held_s, self._held_s = self._held_s, 0.0
        self._groups.late_ages.clear()
        self.until_s = None
        return held_s

    def _turn(self, now: float, *, is_on: bool) -> None:
        """Begin or end the wait; one for a while that has ended does not begin again."""
        if is_on and not self.is_on:
            self._since_s = now
        elif self.is_on and not is_on:
            self._held_s += now - self._since_s
            self.until_s = None if self._waits_for_all else now
        self.is_on = is_on

    def _may_save_work(self, optimizer: Version, now: float) -> bool:
        if not self._endangered(optimizer):
            return False
        if self._waits_for_all:
            return True
        if self.until_s is None:
            self.until_s = min(now + self._bound.patience_s, self._expect(optimizer, now))
        return now < self.until_s

    def _expect(self, optimizer: Version, now: float) -> float:
        """Leave out what is late; return until when waiting for the rest may save some."""
        on_time: list[tuple[Version, float]] = []
        for group in self._groups.born:
            late_s = self._usual.late_s(group.domain)
            due_s = group.due_s(self._batching.group_size, late_s=late_s, now=now)
            born = cast("Version", group.born)
            if due_s > now:
                on_time.append((born, due_s))
            else:
                self._groups.late_ages.add(group.id, born=born)
        until_s = now
        for version, places in self._endangered(optimizer).items():
            times = sorted(due_s for born, due_s in on_time if born <= version)
            until_s = max(until_s, times[-1 - places])
        return until_s

    def _endangered(self, optimizer: Version) -> dict[Version, int]:
        groups = self._groups
        return self._bound.find_endangered(
            rolling=groups.rolling_ages,
            late=groups.late_ages,
            ready=groups.ready_ages,
            optimizer=optimizer,
            groups_per_step=self._batching.groups_per_step,
            spare=0 if self._waits_for_all else groups.admission.redundancy.extra_groups,
        )
