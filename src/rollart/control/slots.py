"""Slots: the places where environments run, and which of them rest after a failure.

Every slot is in exactly one place: free, resting until a time, or taken. A slot that failed goes
to the back of the queue when its rest is over, so healthy ones are used first.
"""

from collections import deque
from heapq import heappop, heappush

from rollart.types import SlotId


class Slots:
    """The environment slots of a run."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._free = deque(SlotId(number) for number in range(count))
        self._resting: list[tuple[float, SlotId]] = []
        self._taken: set[SlotId] = set()
        self._failures: dict[SlotId, int] = {}

    def take(self, now: float) -> SlotId | None:
        """Return a slot to use, or None when none is free."""
        while self._resting and self._resting[0][0] <= now:
            self._free.append(heappop(self._resting)[1])
        if not self._free:
            return None
        slot = self._free.popleft()
        self._taken.add(slot)
        return slot

    def give_back(self, slot: SlotId, *, healthy: bool) -> None:
        """Free a slot; a healthy one's failures are forgotten."""
        self._taken.remove(slot)
        if healthy:
            self._failures.pop(slot, None)
        self._free.append(slot)

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
        """When the next resting slot returns."""
        return self._resting[0][0] if self._resting else None

    def check(self, taken: set[SlotId]) -> None:
        """Assert that each slot is in one place and that `taken` are the ones in use."""
        places = [*self._free, *(slot for _, slot in self._resting), *self._taken]
        assert sorted(places) == list(range(self._count))
        assert self._taken == taken
