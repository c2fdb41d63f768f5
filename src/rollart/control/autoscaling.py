"""Scaling: how many instances of a function there should be, and which one runs which call.

As many instances are held as the calls need, between `min_instances` and `max_instances`. A call
goes to the fullest instance that has a place, among idle ones to the one used last: so the rest
fall idle, and after `idle_s` they are let go, down to zero. A call that finds no place waits, and
whichever instance is free first takes it, whether that is a new one or an old one.

Every instance that was asked for ends exactly once, by `stop` or by `died`; every call ends
exactly once, by `answered`, `withdrawn` or as one of the `lost` of an instance that died. An
instance that dies before it ever started takes the call that waited longest with it: where
nothing can start, calls fail one by one instead of starting for ever.

Pure: no clock, no I/O. The local invoker and the simulator share this file.
"""

from dataclasses import dataclass
from typing import Annotated

from rollart.constraints import AtLeast, Fixed, check_fields
from rollart.errors import ConfigError, InvariantError


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """How far a function scales."""

    max_instances: Annotated[int, AtLeast(1)] = 8
    """Most instances there may be at once."""
    min_instances: int = 0
    """Instances kept when there is nothing to do; 0 scales to zero."""
    concurrency: Annotated[int, AtLeast(1)] = 1
    """Calls one instance takes at once."""
    idle_s: Annotated[float, AtLeast(0)] = 30.0
    """Seconds without a call after which an instance is let go."""
    queue_limit: Annotated[int, AtLeast(1), Fixed("staleness bounds what waits")] = 10_000
    """Calls that may wait for a place; one more is refused."""

    def __post_init__(self) -> None:
        check_fields(self, "scaling")
        if not 0 <= self.min_instances <= self.max_instances:
            fix = f"must lie between 0 and scaling.max_instances ({self.max_instances})"
            raise ConfigError("scaling.min_instances", self.min_instances, fix)

    def wanted(self, calls: int) -> int:
        """Return how many instances so many calls, running or waiting, ask for."""
        needed = -(-calls // self.concurrency)
        return min(self.max_instances, max(self.min_instances, needed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What is to be done after an event."""

    start: tuple[int, ...] = ()
    """Instances to start, by the number they are known by from now on."""
    stop: tuple[int, ...] = ()
    """Idle instances to end."""
    run: tuple[tuple[int, int], ...] = ()
    """Calls to hand over, each with the instance that takes it."""
    lost: tuple[int, ...] = ()
    """Calls that ended with the instance that died."""


class Scaler:
    """Holds calls and instances by number; says what to start, stop and run.

    `now` never goes back.
    """

    def __init__(self, rule: Scaling) -> None:
        self._rule = rule
        self._next_instance = 0
        self._waiting: dict[int, None] = {}
        self._running: dict[int, int] = {}
        self._calls_of: dict[int, set[int]] = {}
        self._starting: set[int] = set()
        # Ready instances by how many calls they run; within a row, the one used last is last.
        self._by_load: list[dict[int, float]] = [{} for _ in range(rule.concurrency + 1)]
        self._since = 0.0
        self._busy_s = 0.0
        self._held_s = 0.0

    @property
    def has_room(self) -> bool:
        """Say whether one more call may come."""
        return len(self._waiting) < self._rule.queue_limit

    @property
    def waiting(self) -> int:
        """How many calls wait for a place."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """How many calls run."""
        return len(self._running)

    @property
    def instances(self) -> int:
        """How many instances are held, those still starting included."""
        return len(self._calls_of)

    @property
    def next_tick(self) -> float | None:
        """When the next instance may be let go, None if none is idle or may go."""
        if self.instances <= self._rule.min_instances:
            return None
        since = next(iter(self._by_load[0].values()), None)
        return None if since is None else since + self._rule.idle_s

    def called(self, call: int, *, now: float) -> Orders:
        """Take a call."""
        if call in self._waiting or call in self._running or not self.has_room:
            raise InvariantError(f"call {call} came twice, or when there was no room")
        self._waiting[call] = None
        return self._arrange(now)

    def started(self, instance: int, *, now: float) -> Orders:
        """Note that an instance takes calls from now on."""
        if instance not in self._starting:
            raise InvariantError(f"instance {instance} started, but was not starting")
        self._count(now)
        self._starting.remove(instance)
        self._by_load[0][instance] = now
        return self._arrange(now)

    def answered(self, call: int, *, now: float) -> Orders:
        """Note that a call that ran is over, well or not."""
        if call not in self._running:
            raise InvariantError(f"call {call} was answered, but did not run")
        self._count(now)
        instance = self._running.pop(call)
        calls = self._calls_of[instance]
        del self._by_load[len(calls)][instance]
        calls.remove(call)
        self._by_load[len(calls)][instance] = now
        return self._arrange(now)

    def withdrawn(self, call: int) -> None:
        """Forget a call that waits."""
        del self._waiting[call]

    def died(self, instance: int, *, now: float) -> Orders:
        """Note that an instance ended by itself; its calls are lost."""
        self._count(now)
        calls = self._calls_of.pop(instance)
        if instance in self._starting:
            self._starting.remove(instance)
            calls.update(tuple(self._waiting)[:1])
        else:
            del self._by_load[len(calls)][instance]
        for call in calls:
            self._running.pop(call, None)
            self._waiting.pop(call, None)
        return self._arrange(now, lost=tuple(sorted(calls)))

    def tick(self, *, now: float) -> Orders:
        """Let idle instances go, and hold the fewest there must be."""
        self._count(now)
        stop: list[int] = []
        idle = self._by_load[0]
        while (due := self.next_tick) is not None and due <= now:
            instance = next(iter(idle))
            del idle[instance], self._calls_of[instance]
            stop.append(instance)
        return self._arrange(now, stop=tuple(stop))

    def utilisation(self, *, now: float) -> float:
        """Return the share of the time instances were held in which they ran at least a call."""
        self._count(now)
        return self._busy_s / self._held_s if self._held_s else 0.0

    def check(self) -> None:
        """Assert what must always hold."""
        ready = {each: load for load, row in enumerate(self._by_load) for each in row}
        _hold(set(ready) | self._starting == set(self._calls_of), "an instance is in one row")
        _hold(not set(ready) & self._starting, "what starts is not ready")
        _hold(all(len(self._calls_of[each]) == load for each, load in ready.items()), "loads")
        homes = {call: each for each, calls in self._calls_of.items() for call in calls}
        _hold(homes == self._running, "a call runs in one instance")
        _hold(not set(self._waiting) & set(self._running), "what waits does not run")
        _hold(len(self._calls_of) <= self._rule.max_instances, "no more than the most")
        full = len(self._by_load[-1]) == len(ready)
        _hold(not self._waiting or full, "nothing waits while there is a place")

    def _arrange(
        self, now: float, *, stop: tuple[int, ...] = (), lost: tuple[int, ...] = ()
    ) -> Orders:
        self._count(now)
        run: list[tuple[int, int]] = []
        while self._waiting and (instance := self._fullest()) is not None:
            call = next(iter(self._waiting))
            del self._waiting[call]
            self._hand_over(call, instance, now)
            run.append((call, instance))
        wanted = self._rule.wanted(len(self._waiting) + len(self._running))
        start = [self._open() for _ in range(wanted - self.instances)]
        return Orders(start=tuple(start), stop=stop, run=tuple(run), lost=lost)

    def _fullest(self) -> int | None:
        for row in reversed(self._by_load[:-1]):
            if row:
                return next(reversed(row))
        return None

    def _hand_over(self, call: int, instance: int, now: float) -> None:
        calls = self._calls_of[instance]
        del self._by_load[len(calls)][instance]
        calls.add(call)
        self._by_load[len(calls)][instance] = now
        self._running[call] = instance

    def _open(self) -> int:
        instance = self._next_instance
        self._next_instance += 1
        self._starting.add(instance)
        self._calls_of[instance] = set()
        return instance

    def _count(self, now: float) -> None:
        passed = now - self._since
        self._since = now
        self._held_s += passed * len(self._calls_of)
        self._busy_s += passed * sum(len(row) for row in self._by_load[1:])


def _hold(claim: bool, words: str) -> None:
    if not claim:
        raise InvariantError(f"scaling: {words}")
