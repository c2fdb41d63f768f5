"""Supervisor: keeps one actor running in each place, on machines that come and go.

    make ──► join ──► works ── lost ─────────────────────► rest, make again ──► join ──► …
                        └───── its own pool has room ────► a successor joins, this one retires

What engines, environment workers and the trainer share: names that are never used twice, restarts
with growing rests, giving up, and moving back to the preferred pool. What differs between them is
a `Role`: how an actor is made, what its coming and going means, and when to give up.

Invariant: at most one task at a time makes an actor for a place. It holds because an actor that is
lost while its successor is being made is replaced by that successor: `lose` claims it before it
returns. An actor that is lost is ended before another is made, since a broken one that still lives
would keep its hardware.
"""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from rollart.clock import SystemClock
from rollart.rollout.tasks import end_tasks, together

A = TypeVar("A")
T = TypeVar("T")


@dataclass(slots=True, kw_only=True, eq=False)
class Place(Generic[A]):
    """Where one actor runs; its successors run there after it.

    Example:
        >>> place = Place(name="engine-0", title="engine engine-0")
        >>> place.next_name(), place.next_name()
        ('engine-0', 'engine-0.1')

    """

    name: str
    title: str
    """What its actor is called in messages."""
    actor: A | None = None
    """The actor that works here now; None while another is being made."""
    successor: "asyncio.Future[A] | None" = None
    """The actor that is being made to take over, while the one here works."""
    generation: int = 0
    """How many names were given out."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a successor takes over, and by callers whose work that must not interrupt."""

    def next_name(self) -> str:
        """Return a name that no actor of this place has had."""
        name = f"{self.name}.{self.generation}" if self.generation else self.name
        self.generation += 1
        return name


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How long to rest between two tries to make an actor, and when to stop trying.

    Example:
        >>> RestartPolicy(first_rest_s=0.5, longest_rest_s=10.0, tries=10)

    """

    first_rest_s: float = 0.5
    """The rest after the first try; each later one is twice as long."""
    longest_rest_s: float = 5.0
    tries: float = math.inf
    """Failed tries after which a role that may give up does."""
    patience_s: float = math.inf
    """Seconds of trying after which a role that may give up does."""
    retried: tuple[type[Exception], ...] = (Exception,)
    """Errors after which another try may succeed; any other one is raised at once."""


def _always() -> bool:
    return True


async def do_nothing(_actor: Any) -> None:
    """Do nothing with an actor, as a role that has nothing to hand over."""


def _ignore(*_args: object) -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Role(Generic[A]):
    """What is special about one kind of actor.

    Example:
        >>> Role(make=spawn_engine, end=end_engine, retire=evict, warn=print)

    """

    make: Callable[[Place[A], str], Awaitable[A]]
    """Spawns and starts an actor under a new name; ends its process if it cannot start."""
    end: Callable[[A], Awaitable[None]]
    """Ends an actor's process, whatever state it is in; raises nothing."""
    retire: Callable[[Place[A], A], Awaitable[None]]
    """Ends an actor whose successor has joined, without loss of what it is doing."""
    warn: Callable[[str], None]
    join: Callable[[Place[A], A], None] = _ignore
    """Learns that an actor is now the one of its place."""
    take_over: Callable[[A], Awaitable[None]] = do_nothing
    """Brings a successor to the state of the actor it follows."""
    release: Callable[[str], None] = _ignore
    """Gives back the hardware of an actor that could not be made, by its name."""
    is_better: Callable[[Place[A]], bool] = field(default=lambda _place: False)
    """Says whether the actor of a place could now run where it prefers to."""
    may_give_up: Callable[[], bool] = _always
    give_up: Callable[[Place[A], Exception], None] = _ignore
    """Learns that no actor could be made in place of one that was lost, and why."""
    restarts: RestartPolicy = field(default_factory=RestartPolicy)


class Supervisor(Generic[A]):
    """Makes the actors of one role and makes them again when they are lost."""

    def __init__(self, role: Role[A], *, places: Iterable[Place[A]]) -> None:
        self._role = role
        self.places = tuple(places)
        self._tasks: set[asyncio.Task[Any]] = set()
        self.is_closed = False

    async def start(self) -> None:
        """Make an actor in every place; raises the first error, after the others were ended."""
        await together(self._fill(place) for place in self.places)

    def install(self, place: Place[A], actor: A) -> None:
        """Let an actor be the one of a place."""
        place.actor = actor
        self._role.join(place, actor)

    def lose(self, place: Place[A], actor: A) -> None:
        """End an actor that is lost; if it was its place's, have another made."""
        if self.is_closed:
            return
        if place.actor is not actor:  # its successor has joined
            self.run(self._role.end(actor))
            return
        place.actor = None
        self.run(self._replace(place, actor, _claim_successor(place)))

    async def make_again(self, place: Place[A]) -> A:
        """Return another actor for a place that has lost its own; the caller installs it.

        Tries until the role gives up, then raises the last error.
        """
        return await self._make_again(place, _claim_successor(place))

    async def move(self, place: Place[A], make: Callable[[], Awaitable[A]] | None = None) -> bool:
        """Make a successor in the preferred pool and let it take over; say whether it did.

        The actor there works meanwhile, and for longer where no successor can be made. `make`
        makes the successor in place of the role.
        """
        self._role.warn(f"{place.title} moves to its preferred pool")
        successor = self.run(_awaited(make) if make is not None else self._make(place))
        place.successor = successor
        try:
            await asyncio.wait({successor})
            async with place.turn:
                if place.successor is not successor:  # it replaces an actor that was lost
                    return successor.exception() is None
                place.successor = None
                await self._take_over(place, successor.result())
                return place.actor is successor.result()
        except Exception as error:
            self._role.warn(f"{place.title} cannot move: {error}")
            return False
        finally:
            if place.successor is successor:
                place.successor = None
                successor.cancel()

    async def move_home(self) -> bool:
        """Move every actor that could now run where it prefers to; say whether all have moved."""
        away = [
            place
            for place in self.places
            if place.actor is not None and place.successor is None and self._role.is_better(place)
        ]
        return all(await asyncio.gather(*(self.move(place) for place in away)))

    async def close(self) -> None:
        """Make no further actor, and wait until what is being made has ended.

        The actors are the host's to end.
        """
        self.is_closed = True
        await end_tasks(self._tasks)

    def run(self, work: Coroutine[Any, Any, T] | Awaitable[T]) -> "asyncio.Task[T]":
        """Run something beside the caller until it ends or the supervisor is closed."""
        coroutine = work if asyncio.iscoroutine(work) else _awaited(lambda: work)
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _fill(self, place: Place[A]) -> None:
        self.install(place, await self._make(place))

    async def _make(self, place: Place[A]) -> A:
        name = place.next_name()
        try:
            return await self._role.make(place, name)
        except BaseException:
            self._role.release(name)
            raise

    async def _replace(
        self, place: Place[A], lost: A, successor: "asyncio.Future[A] | None"
    ) -> None:
        await self._role.end(lost)
        try:
            actor = await self._make_again(place, successor)
        except Exception as error:
            self._role.give_up(place, error)
        else:
            self.install(place, actor)

    async def _make_again(self, place: Place[A], successor: "asyncio.Future[A] | None") -> A:
        role, policy, clock = self._role, self._role.restarts, SystemClock()
        rest_s, tries, warned = policy.first_rest_s, 0, ""
        while True:
            try:
                if successor is None:
                    return await self._make(place)
                claimed, successor = successor, None
                return await claimed
            except policy.retried as error:
                tries += 1
                is_long = tries >= policy.tries or clock.now() >= policy.patience_s
                if is_long and role.may_give_up():
                    raise
                if warned != (warned := f"{place.title} cannot be made now: {error}"):
                    role.warn(warned)
            await asyncio.sleep(rest_s)
            rest_s = min(2 * rest_s, policy.longest_rest_s)

    async def _take_over(self, place: Place[A], new: A) -> None:
        try:
            await self._role.take_over(new)
        except BaseException:
            await self._role.end(new)
            raise
        old = place.actor
        self.install(place, new)
        if old is not None:
            await self._role.retire(place, old)


class Closable(Protocol):
    """What can be ended."""

    async def close(self) -> None:
        """End it."""
        ...


async def close_quietly(actor: Closable | None) -> None:
    """End an actor that may have died already."""
    if actor is not None:
        with contextlib.suppress(Exception):
            await actor.close()


def _claim_successor(place: Place[A]) -> "asyncio.Future[A] | None":
    successor, place.successor = place.successor, None
    return successor


async def _awaited(make: Callable[[], Awaitable[T]]) -> T:
    return await make()
