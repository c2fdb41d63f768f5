"""Channel: many messages each way in few calls, between two actors that talk all the time.

    Channel (caller) ── exchange(number, messages) ──►  Mailbox (server)
                     ◄── what has happened since ─────

The caller sends what has gathered since its last call. The call returns as soon as the server has
anything to report, with all of it. A later call lets the one before it return at once, so at most
two are under way, and no message waits for another: under load each call carries more, not later.

Order is kept. Calls may overtake each other on the way, and so may their answers, but each has a
number, and both sides take what arrives in the order of the numbers. Only the newest call gets
reports, so what is reported in order is received in order.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from rollart.ports import Handle

Sent = TypeVar("Sent")
Reported = TypeVar("Reported")
Item = TypeVar("Item")


class InOrder(Generic[Item]):
    """Puts numbered batches in order again, whatever order they arrive in.

    Example:
        >>> messages = InOrder[str]()
        >>> messages.take(1, ["second"])
        []
        >>> messages.take(0, ["first"])
        ['first', 'second']

    """

    def __init__(self) -> None:
        self._next = 0
        self._early: dict[int, Sequence[Item]] = {}

    def take(self, number: int, items: Sequence[Item]) -> list[Item]:
        """Take a batch; return the items of all batches whose turn has come."""
        self._early[number] = items
        ready: list[Item] = []
        while self._next in self._early:
            ready += self._early.pop(self._next)
            self._next += 1
        return ready


class Mailbox(Generic[Reported]):
    """The server's side: what is to be reported to one caller."""

    def __init__(self) -> None:
        self._reports: list[Reported] = []
        self._number = -1
        self._changed = asyncio.Event()
        self._error: Exception | None = None

    def put(self, report: Reported) -> None:
        """Report something to the caller, with its next call if none is waiting."""
        self._reports.append(report)
        self._changed.set()

    def fail(self, error: Exception) -> None:
        """Answer every call with an error from now on."""
        self._error = error
        self._changed.set()

    async def collect(self, number: int) -> list[Reported]:
        """Return all reports, once there are any; none if a later call came."""
        self._number = max(self._number, number)
        self._changed.set()
        while not self._reports and number == self._number and self._error is None:
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error
        if number != self._number:
            return []
        reports, self._reports = self._reports, []
        return reports


class Channel(Generic[Sent, Reported]):
    """The caller's side: sends what gathers in one pass of the loop, and listens while it must.

    Example:
        >>> channel = Channel(
        ...     handle, name="worker-0", receive=print, is_listening=lambda: True, lose=print
        ... )
        >>> channel.send(StopAttempt(id=TrajectoryId(3)))

    """

    def __init__(
        self,
        handle: Handle,
        *,
        name: str,
        receive: Callable[[Reported], None],
        is_listening: Callable[[], bool],
        lose: Callable[[Exception], None],
    ) -> None:
        """Take the server's handle, the caller's name, what receives each report, whether any is
        awaited, and what learns that the server is lost.
        """
        self._handle = handle
        self._name = name
        self._receive = receive
        self._is_listening = is_listening
        self._lose = lose
        self._outbox: list[Sent] = []
        self._number = 0
        self._answers: InOrder[Reported] = InOrder()
        self._calls: set[asyncio.Task[None]] = set()
        self._is_due = False
        self._is_closed = False

    def send(self, message: Sent) -> None:
        """Send a message with the next call, which is made in this pass of the loop."""
        self._outbox.append(message)
        self.listen()

    def listen(self) -> None:
        """Make a call in this pass of the loop."""
        if not self._is_due and not self._is_closed:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._call)

    def close(self) -> None:
        """Make no further call and receive no further report."""
        self._is_closed = True
        for call in self._calls:
            call.cancel()

    def _call(self) -> None:
        self._is_due = False
        if self._is_closed:
            return
        messages, self._outbox = self._outbox, []
        task = asyncio.get_running_loop().create_task(self._exchange(self._number, messages))
        self._number += 1
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _exchange(self, number: int, messages: list[Sent]) -> None:
        try:
            answers: list[Any] = await self._handle.call("exchange", self._name, number, messages)
        except Exception as error:
            if not self._is_closed:
                self.close()  # what other calls bring after the loss comes too late
                self._lose(error)
            return
        if self._is_closed:
            return
        for answer in self._answers.take(number, answers):
            self._receive(answer)
        is_last = number == self._number - 1
        if is_last and self._is_listening():
            self.listen()
