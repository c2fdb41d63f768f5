"""Slots: the places where environments run, and which of them rest after a failure.

Every slot is in exactly one place: free, doubtful (back from a rest), resting until a time, or
taken. Never more are taken than the run has environments; while one rests, a spare may stand in
for it, so a bad place costs no more than what was lost in it. Healthy slots are used first, then
unused spares, then doubtful ones.
"""

from collections import deque
from heapq import heappop, heappush

from rollart.types import SlotId


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
