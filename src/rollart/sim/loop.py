"""The event loop: what will happen, taken in order of time.

What is due at the same time happens in the order it was asked for, so a run depends on nothing
but its inputs. Only what is due within the current second is in a heap. The rest lies unordered in
one list per second and is ordered when its second comes: a heap of everything would not fit in a
processor's cache, and each entry would cost more the more there are. A cancelled entry stays where
it is and is skipped when met.
"""

from collections.abc import Callable
from heapq import heapify, heappop, heappush

Action = Callable[[], None]


class Timer:
    """One thing that will happen, unless it is cancelled."""

    __slots__ = ("action",)

    def __init__(self, action: Action) -> None:
        self.action: Action | None = action

    def cancel(self) -> None:
        """Let it not happen."""
        self.action = None


_Entry = tuple[float, int, Timer]


class Loop:
    """Simulated time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.count = 0
        """Actions taken so far."""
        self._asked = 0
        self._second = 0
        self._heap: list[_Entry] = []
        """What is due in the current second."""
        self._later: dict[int, list[_Entry]] = {}
        """What is due in each later second."""
        self._seconds: list[int] = []
        """The later seconds, as a heap."""

    def after(self, seconds: float, action: Action) -> Timer:
        """Take an action once so many seconds have passed."""
        timer = Timer(action)
        at = self.now + seconds
        entry = (at, self._asked, timer)
        self._asked += 1
        second = int(at)
        if second <= self._second:
            heappush(self._heap, entry)
        elif second in self._later:
            self._later[second].append(entry)
        else:
            self._later[second] = [entry]
            heappush(self._seconds, second)
        return timer

    def step(self) -> bool:
        """Take the next action; return False if there is none."""
        heap = self._heap
        while True:
            while heap:
                at, _, timer = heappop(heap)
                action = timer.action
                if action is not None:
                    self.now = at
                    self.count += 1
                    timer.action = None
                    action()
                    return True
            if not self._seconds:
                return False
            self._second = heappop(self._seconds)
            due = self._later.pop(self._second)
            heap = self._heap = [entry for entry in due if entry[2].action is not None]
            heapify(heap)
