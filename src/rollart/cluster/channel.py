"""Exchange: one call each way for many messages, between two actors that talk all the time.

    Line (caller)   ── exchange(number, messages) ──►   Mailbox (server)
                    ◄── what has happened since ──

The caller hands over what has gathered since its last call; the call returns as soon as there is
something to tell, with all there is. A later call lets the one before it return at once, so at most
two are under way, and a message waits for no other: under load each call carries more, not later.

Calls may overtake each other on their way, and so may their answers: each has a number, and both
sides take what they get in the order of these numbers. Only the newest call is told anything, so
what is told in order is heard in order.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from rollart.ports import Handle

Sent = TypeVar("Sent")
Told = TypeVar("Told")
Item = TypeVar("Item")


class InOrder(Generic[Item]):
    """Puts numbered parcels in order again, whatever order they arrive in."""

    def __init__(self) -> None:
        self._next = 0
        self._early: dict[int, Sequence[Item]] = {}

    def take(self, number: int, items: Sequence[Item]) -> list[Item]:
        """Take a parcel in; return what is in those whose turn has come."""
        self._early[number] = items
        ready: list[Item] = []
        while self._next in self._early:
            ready += self._early.pop(self._next)
            self._next += 1
        return ready


class Mailbox(Generic[Told]):
    """The server's side: what is to be told to one caller."""

    def __init__(self) -> None:
        self._letters: list[Told] = []
        self._number = -1
        self._changed = asyncio.Event()
        self._error: Exception | None = None

    def put(self, letter: Told) -> None:
        """Tell the caller something, with its next call if none is waiting."""
        self._letters.append(letter)
        self._changed.set()

    def fail(self, error: Exception) -> None:
        """Answer every call with an error from now on."""
        self._error = error
        self._changed.set()

    async def collect(self, number: int) -> list[Told]:
        """Return what there is to tell, once there is something; nothing if a later call came."""
        self._number = max(self._number, number)
        self._changed.set()
        while not self._letters and number == self._number and self._error is None:
            self._changed.clear()
            await self._changed.wait()
        if self._error is not None:
            raise self._error
        if number != self._number:
            return []
        letters, self._letters = self._letters, []
        return letters


class Channel(Generic[Sent, Told]):
    """The caller's side: sends what gathers in one pass of the loop, and listens while it must."""

    def __init__(
        self,
        handle: Handle,
        *,
        name: str,
        hear: Callable[[Told], None],
        is_listening: Callable[[], bool],
        lose: Callable[[Exception], None],
    ) -> None:
        """Take whom to call, under which name, what hears each answer, whether any is awaited,
        and what is told when the other side is gone.
        """
        self._handle = handle
        self._name = name
        self._hear = hear
        self._is_listening = is_listening
        self._lose = lose
        self._outbox: list[Sent] = []
        self._number = 0
        self._answers: InOrder[Told] = InOrder()
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
        """Make no further call and hear no further answer."""
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
                self.close()  # what other calls still bring comes too late: the loss is told now
                self._lose(error)
            return
        if self._is_closed:
            return
        for answer in self._answers.take(number, answers):
            self._hear(answer)
        is_last = number == self._number - 1
        if is_last and self._is_listening():
            self.listen()
