"""Lifecycle: how attempts and untrained groups end.

    finished ─► scored ─► settle ─┬─ ready       ─► surplus attempts and groups are dropped
    failed   ─► retried ──────────┼─ rolling
                                  └─ dropped, for a reason

`GroupTable` and `AttemptTable` hold the state; this module knows what a change in one means for
the other. Every way an attempt or an untrained group can end is a method here and returns commands
that say so, which is why none ends silently or twice.
"""

from collections.abc import Callable
from typing import cast, get_args

from rollart.control.adaptive import Adapter
from rollart.control.attempts import AttemptTable
from rollart.control.groups import Attempt, Group, GroupTable
from rollart.control.lending import Lender
from rollart.control.rules import Rules
from rollart.events import (
    CancelReason,
    Command,
    Drop,
    DropReason,
    ScoreFailed,
    TrajectoryBorn,
    TrajectoryFailed,
    TrajectoryScored,
)
from rollart.types import TrajectoryInfo, Version

_CANCEL_REASONS = frozenset[str](get_args(CancelReason))


class Lifecycle:
    """Ends attempts and untrained groups."""

    def __init__(
        self,
        rules: Rules,
        *,
        groups: GroupTable,
        attempts: AttemptTable,
        lender: Lender,
        adapter: Adapter,
        is_fresh: Callable[[Version], bool],
    ) -> None:
        self._rules = rules
        self._groups = groups
        self._attempts = attempts
        self._lender = lender
        self._adapter = adapter
        self._is_fresh = is_fresh
        self.give_up_reason = ""
        """Why the run should end, once only failures arrive; empty while there is hope."""

    def born(self, event: TrajectoryBorn) -> list[Command]:
        """Note the weights an attempt began with; what is too old already is dropped."""
        return self._birth(self._attempts.by_id[event.id], event.version)

    def finished(self, info: TrajectoryInfo, now: float) -> list[Command]:
        """Score an attempt that has its reward, or keep it to be scored."""
        attempt = self._attempts.finish(info.id, now)
        if attempt.state == "cancelling":
            return [Drop(ids=(attempt.id,), reason=attempt.ending)]
        commands = self._birth(attempt, info.born)
        if attempt.state == "discarded":
            return commands
        commands += self._attempts.win(attempt)
        if info.reward is not None:
            return commands + self._score(self._attempts.end(attempt.id), info.reward, now)
        self._attempts.await_score(attempt, is_compared=info.is_compared)
        return commands + (self._attempts.compare(attempt.group) if info.is_compared else [])

    def failed(self, event: TrajectoryFailed, now: float) -> list[Command]:
        """Retry an attempt that failed, or continue without its member."""
        # A worker's end fails all it had at once and says nothing of what it ran.
        failure, is_counted = event.failure, event.failure.kind != "worker"
        attempt = self._attempts.fail(event.id, now, is_counted=is_counted)
        if not attempt.is_wanted:
            return []
        count = self._attempts.failures_in_a_row
        if is_counted and count == self._rules.retry.give_up_after:
            last = f"{failure.kind}: {failure.message}"
            self.give_up_reason = f"{count} attempts in a row failed; the last: {last}"
        return self._retry(attempt, now)

    def scored(self, event: TrajectoryScored, now: float) -> list[Command]:
        """Note a reward."""
        return self._score(self._attempts.end(event.id), event.reward, now)

    def score_failed(self, event: ScoreFailed, now: float) -> list[Command]:
        """Drop an attempt that nobody could score, and retry its member."""
        attempt = self._attempts.end(event.id)
        if attempt.state == "discarded":
            return []
        self._attempts.failed_scores_in_a_row += 1
        count = self._attempts.failed_scores_in_a_row
        if count == self._rules.retry.give_up_after:
            self.give_up_reason = f"{count} scores in a row failed; the last: {event.message}"
        dropped = Drop(ids=(attempt.id,), reason="score_failed")
        if attempt.is_compared:  # what it was compared with is settled: no second try
            return [dropped, *self._settle(attempt.group, now)]
        return [dropped, *self._retry(attempt, now)]

    def drop(self, group: Group, reason: DropReason) -> list[Command]:
        """End a rolling or ready group untrained."""
        self._adapter.lose(group, reason)
        is_cancel_reason = reason in _CANCEL_REASONS
        cancelled = cast("CancelReason", reason) if is_cancel_reason else "group_dropped"
        commands = self._attempts.stop(group, cancelled)
        if group.scored:
            commands.append(Drop(ids=group.trajectories, reason=reason))
        self._groups.remove(group)
        return commands

    def promote(self, now: float) -> list[Command]:
        """Complete the groups that stood by for one that was lost since."""
        commands: list[Command] = []
        for id_ in sorted(self._groups.standing_by):
            group = self._groups.by_id.get(id_)
            if group is not None and not self._groups.is_spare(group):
                self._groups.standing_by.discard(id_)
                commands += self._settle(group, now)
        return commands

    def _birth(self, attempt: Attempt, version: Version) -> list[Command]:
        if attempt.state == "cancelling" or not self._groups.birth(attempt.group, version):
            return []
        return [] if self._is_fresh(version) else self.drop(attempt.group, "stale")

    def _retry(self, attempt: Attempt, now: float) -> list[Command]:
        if self._attempts.retry(attempt):
            return []
        return self._attempts.compare(attempt.group) + self._settle(attempt.group, now)

    def _score(self, attempt: Attempt, reward: float, now: float) -> list[Command]:
        if attempt.state == "discarded":
            return []
        self._attempts.failed_scores_in_a_row = 0
        self._groups.score(attempt, reward)
        return self._settle(attempt.group, now)

    def _settle(self, group: Group, now: float) -> list[Command]:
        """Complete or drop a group if no more is to come of it."""
        verdict = self._groups.judge(group)
        if verdict == "rolling":
            return []
        if verdict != "ready":
            return self.drop(group, verdict)
        commands = self._attempts.stop(group, "surplus")
        surplus = self._groups.keep_trained_members(group)
        if surplus:
            commands.append(Drop(ids=surplus, reason="surplus"))
        if self._groups.is_spare(group):
            self._groups.standing_by.add(group.id)
            return commands
        self._lender.complete(now)
        self._adapter.complete(now)
        for other in self._groups.complete(group):
            commands += self.drop(other, "surplus")
        return commands
