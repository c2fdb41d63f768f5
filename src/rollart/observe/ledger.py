"""The ledger: every sampled token ends as trained or as wasted, with the cause.

Invariant (`check`): tokens sampled by attempts that ended = trained + wasted + those of finished
attempts that await their fate in the buffer or are being trained. Causes read `failed:<kind>`,
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
    """Accounts for sampled tokens."""

    def __init__(self) -> None:
        self.sampled = 0
        self.trained = 0
        self.wasted: Counter[str] = Counter()
        self._open: dict[TrajectoryId, int] = {}
        self._training = 0
        """Tokens of the step under way; they count as trained when it has ended."""
        self._cancelling: dict[TrajectoryId, str] = {}
        self._causes: dict[TrajectoryId, str] = {}
        """Why attempts ended that did not finish: the latest, of which more may be told."""

    @property
    def waiting(self) -> int:
        """Finished attempts in the buffer, neither trained nor dropped yet."""
        return len(self._open)

    def take_over(self, id_: TrajectoryId, tokens: int) -> None:
        """Book a finished attempt of an earlier part of the run, which is in the buffer."""
        self.sampled += tokens
        self._open[id_] = tokens

    def add(self, event: Event, commands: Sequence[Command]) -> None:
        """Book one event and the commands that followed from it."""
        self.note(event)
        self.book(commands)

    def note(self, event: Event) -> None:
        """Book one event."""
        match event:
            case TrajectoryFinished(info=info):
                self.sampled += info.sampled_tokens
                self._open[info.id] = info.sampled_tokens
                self._cancelling.pop(info.id, None)
            case TrajectoryFailed(id=id_, failure=failure, sampled_tokens=tokens):
                self._cancelling.pop(id_, None)
                self._end(id_, f"failed:{failure.kind}", tokens)
            case TrajectoryCancelled(id=id_, sampled_tokens=tokens):
                self._end(id_, f"cancelled:{self._cancelling.pop(id_, 'interrupted')}", tokens)
            case TurnCut(id=id_, sampled_tokens=tokens):
                self._waste(self._causes.pop(id_, "cancelled:interrupted"), tokens)
            case StepFinished():
                self.trained, self._training = self.trained + self._training, 0
            case _:
                pass

    def book(self, commands: Sequence[Command]) -> None:
        """Book the commands that followed from an event."""
        for command in commands:
            self._book(command)

    def check(self) -> None:
        """Assert that no token is lost or counted twice."""
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

    def _end(self, id_: TrajectoryId, cause: str, tokens: int) -> None:
        self._waste(cause, tokens)
        self._causes[id_] = cause
        if len(self._causes) > _REMEMBERED:
            del self._causes[next(iter(self._causes))]

    def _waste(self, cause: str, tokens: int) -> None:
        self.sampled += tokens
        self.wasted[cause] += tokens
