"""Attempts: from launch to end, the members waiting for one, and the slots they use.

An attempt is launched once and forgotten once: when it is scored, fails, is cancelled, or is
dropped after it finished. While it runs or is being cancelled it has a slot to itself. A group's
`queued` and `in_flight` change only in `AttemptTable`, so a member is never in both.

`Slots` are the places where environments run. Each is free, doubtful (back from a rest), resting
until a time, or taken. Never more are taken than the run has environments; while one rests, a spare
replaces it. Healthy slots are used first, then unused spares, then doubtful ones.

`Hedges` finds attempts that run much longer than usual. The usual time is a running mean of the
attempts that finished. An overdue attempt is doubled in another slot: its hedge has the same seed
and so plays the same draws, which is why it does not matter which of the two finishes first. The
other one is cancelled, and the slot of the slower one rests like one that failed.

A member that is tried again after a failure plays the same draws too. With new draws, attempts
that fail more often because of what the policy does in them would be trained less often.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush

from rollart.control.groups import Attempt, Group
from rollart.control.rules import Rules
from rollart.control.task_order import AttemptDurations
from rollart.events import Cancel, CancelReason, Command, Drop, Launch, Score
from rollart.seeds import derive_seed
from rollart.types import SlotId, TrajectoryId


class Slots:
    """The environment slots of a run."""

    def __init__(self, count: int, *, spares: int = 0) -> None:
        self._count = count
        self._most = count + spares
        self._known = count
        self._free = deque(SlotId(number) for number in range(count))
        self._doubtful: deque[SlotId] = deque()
        self._resting: list[tuple[float, SlotId]] = []
        self._taken: set[SlotId] = set()
        self._failures: dict[SlotId, int] = {}

    def take(self, now: float) -> SlotId | None:
        """Return a slot to use, or None when none may be."""
        while self._resting and self._resting[0][0] <= now:
            self._doubtful.append(heappop(self._resting)[1])
        slot = self._choose() if len(self._taken) < self._count else None
        if slot is not None:
            self._taken.add(slot)
        return slot

    def give_back(self, slot: SlotId, *, healthy: bool) -> None:
        """Free a slot; a healthy one's failures are forgotten."""
        self._taken.remove(slot)
        if healthy:
            self._failures.pop(slot, None)
        (self._doubtful if slot in self._failures else self._free).append(slot)

    def count_failure(self, slot: SlotId) -> int:
        """Note a failure in a slot; return how many it now has in a row."""
        self._failures[slot] = self._failures.get(slot, 0) + 1
        return self._failures[slot]

    def rest(self, slot: SlotId, *, until: float) -> None:
        """Keep a taken slot out of use until a time."""
        self._taken.remove(slot)
        heappush(self._resting, (until, slot))

    @property
    def taken(self) -> int:
        """How many slots run an attempt."""
        return len(self._taken)

    @property
    def next_return_s(self) -> float | None:
        """When the next resting slot returns, if it could then be used."""
        return self._resting[0][0] if self._resting and self.taken < self._count else None

    def check(self, taken: set[SlotId]) -> None:
        """Assert that each slot is in one place and that `taken` are the ones in use."""
        resting = [slot for _, slot in self._resting]
        places = [*self._free, *self._doubtful, *resting, *self._taken]
        assert sorted(places) == list(range(self._known))
        assert self._taken == taken
        assert len(taken) <= self._count

    def _choose(self) -> SlotId | None:
        if self._free:
            return self._free.popleft()
        if self._known < self._most:
            self._known += 1
            return SlotId(self._known - 1)
        return self._doubtful.popleft() if self._doubtful else None


_WEIGHT = 0.05
_MOST = 4.0
_DRAWS = 0
"""The part of a seed that every try of a member shares."""


class Hedges:
    """Knows how long attempts usually take and which are overdue."""

    def __init__(self, after: float) -> None:
        self._after = after
        self._usual_s: float | None = None
        self._due: list[tuple[float, TrajectoryId]] = []
        self._launched: dict[TrajectoryId, float] = {}

    def launch(self, attempt: TrajectoryId, now: float) -> None:
        """Note that an attempt starts."""
        if self._after:
            self._launched[attempt] = now
            if self._usual_s is not None:
                heappush(self._due, (now + self._after * self._usual_s, attempt))

    def finish(self, attempt: TrajectoryId, now: float) -> None:
        """Note that an attempt finished by itself, and how long that takes."""
        if not self._after:
            return
        took_s = max(0.0, now - self._launched.pop(attempt))
        if self._usual_s is None:
            self._usual_s = took_s
            self._due = [
                (start + self._after * took_s, each) for each, start in self._launched.items()
            ]
            heapify(self._due)
        else:
            self._usual_s += _WEIGHT * (min(took_s, _MOST * self._usual_s) - self._usual_s)

    def stop(self, attempt: TrajectoryId, now: float) -> bool:
        """Note that an attempt failed or was cancelled; return whether it was overdue."""
        if not self._after:
            return False
        ran_s = now - self._launched.pop(attempt)
        return self._usual_s is not None and ran_s > self._after * self._usual_s

    def overdue(self, now: float) -> list[TrajectoryId]:
        """Return the attempts that have become overdue, each once."""
        found: list[TrajectoryId] = []
        while self._due and self._due[0][0] <= now:
            attempt = heappop(self._due)[1]
            start = self._launched.get(attempt)
            if start is None:
                continue
            due_s = start + self._after * (self._usual_s or 0.0)
            if due_s <= now:
                found.append(attempt)
            else:
                heappush(self._due, (due_s, attempt))
        return found

    @property
    def next_s(self) -> float | None:
        """When the next attempt may be overdue."""
        return self._due[0][0] if self._due else None


class AttemptTable:
    """The attempts of a run, and what is to be attempted next."""

    def __init__(
        self, rules: Rules, *, durations: AttemptDurations, usual: AttemptDurations
    ) -> None:
        """Take where to note how long attempts take: all, and those that end by themselves."""
        self._rules = rules
        self._durations = durations
        self._usual = usual
        self.by_id: dict[TrajectoryId, Attempt] = {}
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
        doubles = group.hedges.get(member)
        self.next_trajectory += 1
        self.by_id[attempt.id] = attempt
        group.in_flight[member] = attempt
        self._hedges.launch(attempt.id, now)
        return Launch(
            id=attempt.id,
            group=group.id,
            member=member,
            attempt=attempt.number,
            task=group.task,
            slot=slot,
            seed=derive_seed(
                self._rules.seed, group.id, member if doubles is None else doubles, _DRAWS
            ),
            doubles=doubles,
        )

    def hedge(self, now: float) -> float | None:
        """Queue a hedge for every attempt that is overdue; return when the next may be."""
        for id_ in self._hedges.overdue(now):
            attempt = self.by_id[id_]
            group, member = attempt.group, attempt.member
            is_doubled = member in group.hedges or member in group.hedges.values()
            if attempt.state == "running" and not is_doubled:
                group.hedges[group.members] = member
                group.queued[group.members] = attempt.number
                self.queue.appendleft((group, group.members))
                group.members += 1
        return self._hedges.next_s

    def win(self, attempt: Attempt) -> list[Command]:
        """Give a member to the attempt that finished first; stop the other, if it was doubled."""
        group = attempt.group
        other = self._other(attempt)
        if attempt.member in group.hedges:
            member = group.hedges.pop(attempt.member)
            winner = group.in_flight.pop(attempt.member)
            commands = self._stop_member(group, member)
            attempt.member, group.in_flight[member] = member, winner
            return commands
        if other is None:
            return []
        del group.hedges[other]
        return self._stop_member(group, other)

    def _other(self, attempt: Attempt) -> int | None:
        """Return the place of the hedge of an attempt, if it has one."""
        hedges = attempt.group.hedges.items()
        return next((place for place, member in hedges if member == attempt.member), None)

    def _stop_member(self, group: Group, place: int) -> list[Command]:
        """Stop what is queued or runs at a place of a group, because its double finished."""
        group.queued.pop(place, None)
        attempt = group.in_flight.pop(place, None)
        return [] if attempt is None else [self._cancel(attempt, "surplus")]

    def finish(self, id_: TrajectoryId, now: float) -> Attempt:
        """Note that an attempt finished by itself; one being cancelled is forgotten."""
        attempt = self.by_id[id_]
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
        attempt = self.by_id.pop(id_)
        if attempt.is_wanted:
            del attempt.group.in_flight[attempt.member]
        return attempt

    def retry(self, attempt: Attempt) -> bool:
        """See that something else plays an ended attempt's member; return whether that is so.

        If it was doubled, the other one does. A surplus member stands in for it if there is one;
        otherwise it is queued again before all others, while it has a try left.
        """
        group, number = attempt.group, attempt.number + 1
        if attempt.member in group.hedges:
            del group.hedges[attempt.member]
            return True
        place = self._other(attempt)
        if place is not None:
            del group.hedges[place]
            group.queued.pop(place, None)
            hedge = group.in_flight.pop(place, None)
            if hedge is not None:
                hedge.member, group.in_flight[attempt.member] = attempt.member, hedge
                return True
        if self._has_stand_in(group) or number >= self._rules.retry.max_attempts:
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
        size = self._rules.batching.group_size
        rivals = {member: each for member, each in group.in_flight.items() if each.state == "rival"}
        is_whole = not group.queued and len(rivals) == len(group.in_flight)
        if self._rules.redundancy.choice == "launched":
            chosen = group.chosen(size)
            rivals = {member: rivals[member] for member in chosen if member in rivals}
        if not rivals or not (is_whole or len(rivals) >= size):
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
        for member, attempt in group.in_flight.items():
            if member in spared:
                continue
            commands.append(self._cancel(attempt, reason))
        group.in_flight = dict(spared)
        group.queued.clear()
        group.hedges.clear()
        return commands

    def _cancel(self, attempt: Attempt, reason: CancelReason) -> Command:
        """Cancel an attempt that runs, or drop it if it has finished but is not scored."""
        if attempt.state == "running":
            attempt.state = "cancelling"
            attempt.ending = reason
            return Cancel(id=attempt.id, reason=reason)
        if attempt.state in ("rival", "finished"):
            del self.by_id[attempt.id]
        attempt.state = "discarded"
        return Drop(ids=(attempt.id,), reason=reason)

    def _has_stand_in(self, group: Group) -> bool:
        """Say whether enough other members of a group are there to train without one more."""
        others = len(group.scored) + len(group.unscored)
        is_launched = self._rules.redundancy.choice == "launched"
        return is_launched and others >= self._rules.batching.group_size

    def postpone(self, group: Group, reason: CancelReason) -> list[Command]:
        """Stop a group's attempts, each to be made again in a later run."""
        unscored = group.unscored
        commands = self.stop(group, reason)
        group.queued = unscored
        return commands

    @property
    def are_over(self) -> bool:
        """Whether nothing is in flight but scores that nobody wants."""
        return all(attempt.state == "discarded" for attempt in self.by_id.values())

    def check(self, groups: Iterable[Group]) -> None:
        """Assert that slots, attempts and groups agree."""
        attempts = self.by_id.values()
        self.slots.check({a.slot for a in attempts if a.state in ("running", "cancelling")})
        in_flight = [a.id for group in groups for a in group.in_flight.values()]
        assert sorted(in_flight) == sorted(a.id for a in attempts if a.is_wanted)

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
