"""The ledger: the cost of every attempt ends as trained or as wasted, with the cause.

Invariant (`check`): the cost of attempts that ended = trained + wasted + that of finished attempts
that are in the buffer or being trained. It holds because an attempt is added once, when it ends,
and moves from the buffer to exactly one of the two. Causes read `failed:<kind>`,
`cancelled:<reason>`, `dropped:<reason>`.
"""

from collections import Counter
from collections.abc import Sequence

from rollart.events import (
    Cancel,
    Command,
    Drop,
    Event,
    StepFinished,
    Train,
    TrajectoryCancelled,
    TrajectoryFailed,
    TrajectoryFinished,
    TurnCut,
)
from rollart.types import TrajectoryId

_REMEMBERED = 10_000


class Ledger:
    """Accounts for the cost of attempts.

    Example:
        ledger = Ledger()
        ledger.add(TrajectoryCancelled(id=4, cost=12), [])
        ledger.wasted  # Counter({"cancelled:interrupted": 12})

    """

    def __init__(self) -> None:
        self.sampled = 0
        self.trained = 0
        self.wasted: Counter[str] = Counter()
        self._open: dict[TrajectoryId, int] = {}
        self._training = 0
        """Cost of the batch of the step under way; it counts as trained when the step ends."""
        self._cancelling: dict[TrajectoryId, str] = {}
        self._causes: dict[TrajectoryId, str] = {}
        """Why recent attempts ended that did not finish: the cost of their last turn may follow."""

    @property
    def waiting(self) -> int:
        """Number of finished attempts in the buffer, neither trained nor dropped yet."""
        return len(self._open)

    def take_over(self, id_: TrajectoryId, cost: int) -> None:
        """Book a finished attempt of an earlier part of the run, which is in the buffer."""
        self.sampled += cost
        self._open[id_] = cost

    def add(self, event: Event, commands: Sequence[Command]) -> None:
        """Book one event and the commands that followed from it."""
        self.note(event)
        self.book(commands)

    def note(self, event: Event) -> None:
        """Book one event."""
        match event:
            case TrajectoryFinished(info=info):
                self.sampled += info.cost
                self._open[info.id] = info.cost
                self._cancelling.pop(info.id, None)
            case TrajectoryFailed(id=id_, failure=failure, cost=cost):
                self._cancelling.pop(id_, None)
                self._end(id_, f"failed:{failure.kind}", cost)
            case TrajectoryCancelled(id=id_, cost=cost):
                self._end(id_, f"cancelled:{self._cancelling.pop(id_, 'interrupted')}", cost)
            case TurnCut(id=id_, cost=cost):
                self._waste(self._causes.pop(id_, "cancelled:interrupted"), cost)
            case StepFinished():
                self.trained, self._training = self.trained + self._training, 0
            case _:
                pass

    def book(self, commands: Sequence[Command]) -> None:
        """Book the commands that followed from an event."""
        for command in commands:
            self._book(command)

    def check(self) -> None:
        """Assert that no cost is lost or counted twice."""
        booked = self.trained + self._training + self.wasted.total() + sum(self._open.values())
        assert self.sampled == booked, (self.sampled, booked)

    def _book(self, command: Command) -> None:
        match command:
            case Cancel(id=id_, reason=reason):
                self._cancelling[id_] = reason
            case Drop(ids=ids, reason=reason):
                self.wasted[f"dropped:{reason}"] += sum(self._open.pop(each, 0) for each in ids)
            case Train(groups=groups):
                self._training = sum(self._open.pop(each, 0) for group in groups for each in group)
            case _:
                pass

    def _end(self, id_: TrajectoryId, cause: str, cost: int) -> None:
        self._waste(cause, cost)
        self._causes[id_] = cause
        if len(self._causes) > _REMEMBERED:
            del self._causes[next(iter(self._causes))]

    def _waste(self, cause: str, cost: int) -> None:
        self.sampled += cost
        self.wasted[cause] += cost
