"""The event loop: what will happen, taken in order of time.

What is due at the same time happens in the order it was asked for, so a run depends on nothing
but its inputs. What is due in a later span of time lies unordered in the span's own list, which is
sorted when its time comes; only what is asked for within the current span goes through a heap. A
heap of everything would not fit in a processor's cache, and each entry would cost more the more
there are. A cancelled entry stays where it is and is skipped when met.
"""

from collections.abc import Callable
from heapq import heappop, heappush

Action = Callable[[], None]

_SPANS_PER_S = 4.0


class Timer:
    """One thing that will happen, unless it is cancelled."""

    __slots__ = ("action",)
    action: Action | None

    def cancel(self) -> None:
        """Let it not happen."""
        self.action = None


_Entry = tuple[float, int, Timer]


class Loop:
    """Simulated time."""

    __slots__ = ("_asked", "_due", "_later", "_soon", "_span", "_spans", "count", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self.count = 0
        """Actions taken so far."""
        self._asked = 0
        self._span = 0
        self._due: list[_Entry] = []
        """What was known to be due in the current span when it began, the last first."""
        self._soon: list[_Entry] = []
        """What was asked for since and is due in it too, as a heap."""
        self._later: dict[int, list[_Entry]] = {}
        """What is due in each later span."""
        self._spans: list[int] = []
        """The later spans, as a heap."""

    def after(self, seconds: float, action: Action) -> Timer:
        """Take an action once so many seconds have passed."""
        timer = Timer()
        timer.action = action
        at = self.now + seconds
        entry = (at, self._asked, timer)
        self._asked += 1
        span = int(at * _SPANS_PER_S)
        if span <= self._span:
            heappush(self._soon, entry)
        elif span in self._later:
            self._later[span].append(entry)
        else:
            self._later[span] = [entry]
            heappush(self._spans, span)
        return timer

    def step(self) -> bool:
        """Take the next action; return False if there is none."""
        due, soon = self._due, self._soon
        while True:
            if soon and not (due and due[-1] < soon[0]):
                at, _, timer = heappop(soon)
            elif due:
                at, _, timer = due.pop()
            elif self._spans:
                self._span = heappop(self._spans)
                later = self._later.pop(self._span)
                due = self._due = [entry for entry in later if entry[2].action is not None]
                due.sort(reverse=True)
                continue
            else:
                return False
            action = timer.action
            if action is not None:
                self.now = at
                self.count += 1
                timer.action = None
                action()
                return True
