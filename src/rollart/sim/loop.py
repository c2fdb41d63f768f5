"""The event loop: a heap of what will happen, taken in order of time.

What is due at the same time happens in the order it was asked for, so a run depends on nothing
but its inputs. A cancelled entry stays in the heap and is skipped when met.
"""

from collections.abc import Callable
from heapq import heappop, heappush

Action = Callable[[], None]


class Timer:
    """One thing that will happen, unless it is cancelled."""

    __slots__ = ("action",)

    def __init__(self, action: Action) -> None:
        self.action: Action | None = action

    def cancel(self) -> None:
        """Let it not happen."""
        self.action = None


class Loop:
    """Simulated time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.count = 0
        """Actions taken so far."""
        self._heap: list[tuple[float, int, Timer]] = []
        self._asked = 0

    def after(self, seconds: float, action: Action) -> Timer:
        """Take an action once so many seconds have passed."""
        timer = Timer(action)
        heappush(self._heap, (self.now + seconds, self._asked, timer))
        self._asked += 1
        return timer

    def step(self) -> bool:
        """Take the next action; return False if there is none."""
        heap = self._heap
        while heap:
            at, _, timer = heappop(heap)
            action = timer.action
            if action is not None:
                self.now = at
                self.count += 1
                timer.action = None
                action()
                return True
        return False
