"""Flights: every attempt from launch to end, the members waiting for one, and the slots they use.

An attempt is launched once and forgotten once: when it is scored, fails, is cancelled, or is
dropped after it finished. While it runs, or is being cancelled, it has a slot to itself. A group's
`queued` and `flying` change only here, so a member is never in both.
"""

from collections import deque
from collections.abc import Iterable

from rollart.control.dispatch import Durations
from rollart.control.groups import Attempt, Group
from rollart.control.hedging import Hedges
from rollart.control.rules import Rules
from rollart.control.slots import Slots
from rollart.events import Cancel, CancelReason, Command, Drop, Launch
from rollart.seeds import derive_seed
from rollart.types import SlotId, TrajectoryId


class Flights:
    """The attempts of a run, and what is to be attempted next."""

    def __init__(self, rules: Rules, *, durations: Durations) -> None:
        self._rules = rules
        self._durations = durations
        self.attempts: dict[TrajectoryId, Attempt] = {}
        self.queue: deque[tuple[Group, int]] = deque()
        """Members to launch; those no longer queued in their group are skipped when met."""
        self.slots = Slots(0)
        self.next_trajectory = 0
        self.failures = 0
        self.failures_in_a_row = 0
        """Failures of wanted attempts with no attempt finished between."""
        self._hedges = Hedges(rules.redundancy.hedge_after)
        self._unscored: list[Attempt] = []

    def open_slots(self, count: int) -> None:
        """Learn how many environments may run at once."""
        self.slots = Slots(count, spares=count if self._rules.retry.spares else 0)

    def enqueue(self, group: Group) -> None:
        """Queue every member a group waits for, behind all others."""
        self.queue.extend((group, member) for member in group.queued)

    def has_queued(self) -> bool:
        """Say whether a member waits for a slot."""
        while self.queue and self.queue[0][1] not in self.queue[0][0].queued:
            self.queue.popleft()
        return bool(self.queue)

    def launch(self, slot: SlotId, now: float) -> Launch:
        """Start the member first in the queue, in a slot taken for it."""
        group, member = self.queue.popleft()
        attempt = Attempt(
            id=TrajectoryId(self.next_trajectory),
            group=group,
            member=member,
            number=group.queued.pop(member),
            slot=slot,
            launched_s=now,
        )
        self.next_trajectory += 1
        self.attempts[attempt.id] = attempt
        group.flying[member] = attempt
        self._hedges.launch(attempt.id, now)
        return Launch(
            id=attempt.id,
            group=group.id,
            member=member,
            attempt=attempt.number,
            task=group.task,
            slot=slot,
            seed=derive_seed(self._rules.seed, group.id, member, attempt.number),
        )

    def hedge(self, now: float) -> float | None:
        """Queue a rival for every attempt that is overdue; return when the next may be."""
        for id_ in self._hedges.overdue(now):
            attempt = self.attempts[id_]
            if attempt.state == "running":
                group = attempt.group
                group.queued[group.members] = 0
                self.queue.appendleft((group, group.members))
                group.members += 1
        return self._hedges.next_s

    def finish(self, id_: TrajectoryId, now: float) -> Attempt:
        """Note that an attempt finished by itself; one being cancelled is forgotten."""
        attempt = self.attempts[id_]
        self._hedges.finish(id_, now)
        self._durations.note(attempt.group.domain, now - attempt.launched_s)
        self.failures_in_a_row = 0
        self.slots.give_back(attempt.slot, healthy=True)
        if attempt.state == "cancelling":
            return self.end(id_)
        attempt.state = "finished"
        return attempt

    def fail(self, id_: TrajectoryId, now: float) -> Attempt:
        """Forget an attempt that failed; its slot rests."""
        attempt = self.end(id_)
        self._hedges.stop(id_, now)
        self._rest(attempt, now)
        if attempt.is_wanted:
            self.failures_in_a_row += 1
        return attempt

    def cancelled(self, id_: TrajectoryId, now: float) -> None:
        """Forget an attempt that was cancelled; its slot rests if it was overdue."""
        attempt = self.end(id_)
        assert attempt.state == "cancelling"
        self._durations.note_cancelled(attempt.group.domain, now - attempt.launched_s)
        if self._hedges.stop(id_, now):
            self._rest(attempt, now)
        else:
            self.slots.give_back(attempt.slot, healthy=False)

    def end(self, id_: TrajectoryId) -> Attempt:
        """Forget an attempt; its member is then neither queued nor in flight."""
        attempt = self.attempts.pop(id_)
        if attempt.is_wanted:
            del attempt.group.flying[attempt.member]
        return attempt

    def retry(self, attempt: Attempt) -> bool:
        """Queue a member again before all others; return whether it had a try left."""
        number = attempt.number + 1
        if number >= self._rules.retry.max_attempts:
            return False
        attempt.group.queued[attempt.member] = number
        self.queue.appendleft((attempt.group, attempt.member))
        return True

    def await_score(self, attempt: Attempt) -> None:
        """Keep a finished attempt until a reward function takes it."""
        self._unscored.append(attempt)

    def take_unscored(self) -> tuple[TrajectoryId, ...]:
        """Hand over the finished attempts still wanted, to be scored."""
        if not self._unscored:
            return ()
        if self._rules.mode.score == "after_rollout" and (self.slots.taken or self.queue):
            return ()
        wanted = [attempt for attempt in self._unscored if attempt.is_wanted]
        for attempt in wanted:
            attempt.state = "scoring"
        self._unscored.clear()
        return tuple(attempt.id for attempt in wanted)

    def stop(self, group: Group, reason: CancelReason) -> list[Command]:
        """Cancel what runs in a group and drop what has finished but is not scored."""
        commands: list[Command] = []
        for attempt in group.flying.values():
            if attempt.state == "running":
                attempt.state = "cancelling"
                attempt.ending = reason
                commands.append(Cancel(id=attempt.id, reason=reason))
            else:
                commands.append(Drop(ids=(attempt.id,), reason=reason))
                if attempt.state == "finished":
                    del self.attempts[attempt.id]
                attempt.state = "discarded"
        group.flying.clear()
        group.queued.clear()
        return commands

    def postpone(self, group: Group, reason: CancelReason) -> list[Command]:
        """Stop a group's attempts, each to be made again in a later run."""
        unscored = group.unscored
        commands = self.stop(group, reason)
        group.queued = unscored
        return commands

    def check(self, groups: Iterable[Group]) -> None:
        """Assert that slots, attempts and groups tell of the same flights."""
        attempts = self.attempts.values()
        self.slots.check({a.slot for a in attempts if a.state in ("running", "cancelling")})
        flying = [a.id for group in groups for a in group.flying.values()]
        assert sorted(flying) == sorted(a.id for a in attempts if a.is_wanted)

    def _rest(self, attempt: Attempt, now: float) -> None:
        """Keep a slot out of use for a while, longer after each failure in a row."""
        self.failures += 1
        failures = self.slots.count_failure(attempt.slot)
        draw = derive_seed(self._rules.seed, self.failures) / 2**63
        rest_s = self._rules.retry.rest_s(failures, draw=draw)
        self.slots.rest(attempt.slot, until=now + rest_s)
