"""The event loop: actions in simulated time, taken in order of time.

Actions due at the same time run in the order they were scheduled, so a run depends on nothing but
its inputs. Time is cut into spans. Actions due in a later span are in that span's own list, which
is sorted when the span begins; only actions scheduled for the current span use a heap. One heap of
everything would not fit in a processor's cache, and each entry would cost more the more there are.
A cancelled entry stays where it is and is skipped when it is reached.
"""

from collections.abc import Callable
from heapq import heappop, heappush

Action = Callable[[], None]

_SPANS_PER_S = 4.0


class Timer:
    """One scheduled action, which can be cancelled."""

    __slots__ = ("action",)
    action: Action | None

    def cancel(self) -> None:
        """Drop the action; it will not run."""
        self.action = None


_Entry = tuple[float, int, Timer]


class Loop:
    """Simulated time and the actions scheduled in it."""

    __slots__ = ("_asked", "_due", "_later", "_soon", "_span", "_spans", "count", "now")

    def __init__(self) -> None:
        self.now = 0.0
        self.count = 0
        """Actions run so far."""
        self._asked = 0
        self._span = 0
        self._due: list[_Entry] = []
        """Actions that were due in the current span when it began, the last first."""
        self._soon: list[_Entry] = []
        """Actions scheduled since that are due in the current span, as a heap."""
        self._later: dict[int, list[_Entry]] = {}
        """Actions due in each later span."""
        self._spans: list[int] = []
        """Numbers of the later spans, as a heap."""

    def after(self, seconds: float, action: Action) -> Timer:
        """Schedule an action in `seconds` from now."""
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
        """Run the next action; return False if there is none."""
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
