"""Flights: every attempt from launch to end, the members waiting for one, and the slots they use.

An attempt is launched once and forgotten once: when it is scored, fails, is cancelled, or is
dropped after it finished. While it runs, or is being cancelled, it has a slot to itself. A group's
`queued` and `flying` change only here, so a member is never in both.
"""

from collections import deque
from collections.abc import Iterable, Mapping

from rollart.control.durations import Durations
from rollart.control.groups import Attempt, Group
from rollart.control.hedging import Hedges
from rollart.control.rules import Rules
from rollart.control.slots import Slots
from rollart.events import Cancel, CancelReason, Command, Drop, Launch, Score
from rollart.seeds import derive_seed
from rollart.types import SlotId, TrajectoryId


class Flights:
    """The attempts of a run, and what is to be attempted next."""

    def __init__(self, rules: Rules, *, durations: Durations, usual: Durations) -> None:
        """Take where to note how long attempts take: all, and those that end by themselves."""
        self._rules = rules
        self._durations = durations
        self._usual = usual
        self.attempts: dict[TrajectoryId, Attempt] = {}
        self.queue: deque[tuple[Group, int]] = deque()
        """Members to launch; those no longer queued in their group are skipped when met."""
        self.slots = Slots(0)
        self.next_trajectory = 0
        self.failures = 0
        self.failures_in_a_row = 0
        """Failures of wanted attempts with no attempt finished between."""
        self._hedges = Hedges(rules.redundancy.hedge_after)
        self.failed_scores_in_a_row = 0
        """Wanted attempts that could not be scored, with none scored between."""
        self._unscored: list[Attempt] = []
        self._uncompared: list[tuple[Attempt, ...]] = []

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
        domain, took_s = attempt.group.domain, now - attempt.launched_s
        self._durations.note(domain, took_s)
        self._usual.note(domain, took_s)
        self.failures_in_a_row = 0
        self.slots.give_back(attempt.slot, healthy=True)
        if attempt.state == "cancelling":
            return self.end(id_)
        attempt.state = "finished"
        return attempt

    def fail(self, id_: TrajectoryId, now: float, *, is_counted: bool = True) -> Attempt:
        """Forget an attempt that failed; its slot rests."""
        attempt = self.end(id_)
        self._hedges.stop(id_, now)
        self._rest(attempt, now)
        if attempt.is_wanted and is_counted:
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

    def await_score(self, attempt: Attempt, *, is_compared: bool) -> None:
        """Keep a finished attempt until a reward function takes it, alone or with its rivals."""
        attempt.is_compared = is_compared
        if is_compared:
            attempt.state = "rival"
        else:
            self._unscored.append(attempt)

    def compare(self, group: Group) -> list[Command]:
        """Have the rivals of a group compared once it has enough, or no more are to come.

        A group is compared once: what else it has in flight is then surplus.
        """
        rivals = {member: each for member, each in group.flying.items() if each.state == "rival"}
        is_whole = not group.queued and len(rivals) == len(group.flying)
        if not rivals or not (is_whole or len(rivals) >= self._rules.batching.group_size):
            return []
        commands = self.stop(group, "surplus", spared=rivals)
        for attempt in rivals.values():
            attempt.state = "finished"
        self._uncompared.append(tuple(rivals[member] for member in sorted(rivals)))
        return commands

    def take_unscored(self) -> list[Command]:
        """Hand over the finished attempts still wanted, to be scored."""
        if not (self._unscored or self._uncompared):
            return []
        if self._rules.mode.score == "after_rollout" and (self.slots.taken or self.queue):
            return []
        # A group's rivals are wanted or dropped all together.
        together = [rivals for rivals in self._uncompared if rivals[0].is_wanted]
        alone = tuple(attempt for attempt in self._unscored if attempt.is_wanted)
        self._unscored.clear()
        self._uncompared.clear()
        commands: list[Command] = [_score(alone, together=False)] if alone else []
        return commands + [_score(rivals, together=True) for rivals in together]

    def stop(
        self, group: Group, reason: CancelReason, *, spared: Mapping[int, Attempt] | None = None
    ) -> list[Command]:
        """Cancel what runs in a group and drop what has finished but is not scored."""
        commands: list[Command] = []
        spared = spared or {}
        for member, attempt in group.flying.items():
            if member in spared:
                continue
            if attempt.state == "running":
                attempt.state = "cancelling"
                attempt.ending = reason
                commands.append(Cancel(id=attempt.id, reason=reason))
            else:
                commands.append(Drop(ids=(attempt.id,), reason=reason))
                if attempt.state in ("rival", "finished"):
                    del self.attempts[attempt.id]
                attempt.state = "discarded"
        group.flying = dict(spared)
        group.queued.clear()
        return commands

    def postpone(self, group: Group, reason: CancelReason) -> list[Command]:
        """Stop a group's attempts, each to be made again in a later run."""
        unscored = group.unscored
        commands = self.stop(group, reason)
        group.queued = unscored
        return commands

    @property
    def are_over(self) -> bool:
        """Whether nothing is in flight but scores that nobody wants."""
        return all(attempt.state == "discarded" for attempt in self.attempts.values())

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


def _score(attempts: tuple[Attempt, ...], *, together: bool) -> Score:
    for attempt in attempts:
        attempt.state = "scoring"
    return Score(ids=tuple(attempt.id for attempt in attempts), together=together)
