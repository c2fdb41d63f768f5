"""Exchange: one call each way for many messages, between two actors that talk all the time.

    Line (caller)   ── exchange(number, messages) ──►   Mailbox (server)
                    ◄── what has happened since ──

The caller hands over what has gathered since its last call; the call returns as soon as there is
something to tell, with all there is. A later call lets the one before it return at once, so at most
two are under way, and a message waits for no other: under load each call carries more, not later.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from rollart.ports import Handle

Sent = TypeVar("Sent")
Told = TypeVar("Told")


class Mailbox(Generic[Told]):
    """The server's side: what is to be told to one caller."""

    def __init__(self) -> None:
        self._letters: list[Told] = []
        self._number = -1
        self._changed = asyncio.Event()

    def put(self, letter: Told) -> None:
        """Tell the caller something, with its next call if none is waiting."""
        self._letters.append(letter)
        self._changed.set()

    async def collect(self, number: int) -> list[Told]:
        """Return what there is to tell, once there is something or a later call has come."""
        self._number = max(self._number, number)
        self._changed.set()
        while not self._letters and number == self._number:
            self._changed.clear()
            await self._changed.wait()
        letters, self._letters = self._letters, []
        return letters


class Line(Generic[Sent, Told]):
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
        """Make no further call; those under way are left to end."""
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
                self._is_closed = True
                self._lose(error)
            return
        for answer in answers:
            self._hear(answer)
        is_last = number == self._number - 1
        if is_last and self._is_listening():
            self.listen()
