"""What all invokers share: a score is tried for until it is had, once, within bounds.

A call waits for a place (as many as instances can run at once), then it is delivered: again after
a failure, with growing jittered waits; a second time beside the first when that one is late; not at
all while the function's circuit is open. Nothing of that gives two scores: a call under a key that
is on its way joins it, of two deliveries the first answer is taken, and whoever asked gets exactly
one answer or one ScoreError with the last reason, at the latest at its deadline. That begins with
the first place, or at an open circuit: a burst larger than the places waits and is not dropped.

Hedging: a delivery that is late gets a rival, and the first answer is taken.

A failure that is not final leaves the other its chance; a final one ends both. Whatever happens,
neither delivery is left running.

What a call used and cost: kept while it is on its way, told as a line when it is over.

Latencies: percentiles over the most recent ones.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol, TypeVar, runtime_checkable

from rollart.clock import Clock, SystemClock
from rollart.errors import ScoreError
from rollart.ports import RewardInvoker
from rollart.rewards.invoke.breaker import Circuits
from rollart.rewards.invoke.options import Reliability
from rollart.types import Reward, ScoreCall

T = TypeVar("T")
Delivery = Coroutine[Any, Any, T]


async def race(
    first: Delivery[T], *, late_s: float | None, second: Callable[[], Delivery[T] | None]
) -> tuple[T, bool]:
    """Return an answer and whether the rival gave it.

    After `late_s` without one (None: never), `second` is asked for a rival; it may give none.
    """
    tasks = [asyncio.create_task(first)]
    try:
        if late_s is not None:
            done, _ = await asyncio.wait(tasks, timeout=late_s)
            rival = None if done else second()
            if rival is not None:
                tasks.append(asyncio.create_task(rival))
        winner = await _winner(set(tasks))
        return winner.result(), winner is not tasks[0]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _winner(pending: set[asyncio.Task[T]]) -> asyncio.Task[T]:
    """Return the first delivery that answered, or whose failure decides."""
    while True:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if task.exception() is None:
                return task
        for task in done:
            error = task.exception()
            if not pending or not isinstance(error, ScoreError) or error.is_final:
                return task


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLine:
    """What one call took and cost."""

    key: str
    function: str
    deliveries: int
    hedges: int
    latency_s: float
    """From the call to its answer, waiting and retries included."""
    billed_s: float
    """Seconds of all its deliveries."""
    cost: float
    failure: str
    """Why there is no score; "" if there is one."""


@dataclass(slots=True)
class Account:
    """What a call has used so far."""

    deliveries: int = 0
    hedges: int = 0
    billed_s: float = 0.0
    last: str = ""
    """Why its last delivery failed, or what it waits for."""

    def close(
        self, call: ScoreCall, *, latency_s: float, failure: str, prices: Reliability
    ) -> CallLine:
        """Return the line of a call that is over."""
        cost = prices.price_per_call * self.deliveries + prices.price_per_s * self.billed_s
        return CallLine(
            key=call.key,
            function=call.function,
            deliveries=self.deliveries,
            hedges=self.hedges,
            latency_s=latency_s,
            billed_s=self.billed_s,
            cost=cost,
            failure=failure,
        )


_KEPT = 4096
_RENEWED_EVERY = 32
_FEWEST = 20


class Latencies:
    """The most recent latencies, in seconds."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_KEPT)
        self._sorted: list[float] = []
        self._added = 0

    def add(self, seconds: float) -> None:
        """Take one more."""
        self._recent.append(seconds)
        self._added += 1

    def percentile(self, share: float) -> float:
        """Return the latency that a share of all did not exceed; 0 if there was none."""
        return _at(sorted(self._recent), share)

    def usual(self, share: float) -> float | None:
        """Return the percentile of a little while ago, cheaply; None while few are known."""
        if self._added < _FEWEST:
            return None
        if not self._sorted or self._added % _RENEWED_EVERY == 0:
            self._sorted = sorted(self._recent)
        return _at(self._sorted, share)


def _at(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class _UndeliveredError(ScoreError):
    """The call is not delivered: too many others wait, or its circuit was given up."""


@dataclass(slots=True)
class _Flight:
    """A call on its way, and how many wait for it."""

    call: ScoreCall
    task: asyncio.Task[tuple[Reward, ...]]
    listeners: int = 0


@runtime_checkable
class _Warmed(Protocol):
    """An invoker that holds instances before the first call."""

    async def warm(self) -> None: ...


class ReliableInvoker:
    """Wraps any invoker."""

    def __init__(
        self,
        inner: RewardInvoker,
        *,
        options: Reliability,
        places: int,
        queue_limit: int,
        clock: Clock | None = None,
        on_call: Callable[[CallLine], None] | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> None:
        """Take the invoker, how many calls it gets at once, how many more may wait, and who is
        told of each call and of what goes wrong.
        """
        self._inner = inner
        self._options = options
        self._clock = clock or SystemClock()
        self._on_call = on_call
        self._queue_limit = queue_limit
        self._places = asyncio.Semaphore(places)
        self._random = Random(options.seed)
        self._circuits = Circuits(options, clock=self._clock, warn=warn)
        self._flights: dict[str, _Flight] = {}
        self._latencies = Latencies()
        self._delivery_latencies = Latencies()
        self._in_flight = 0
        self._queued = 0
        self._cost = 0.0
        self._counts = dict.fromkeys(
            ("scored", "failed", "joined", "deliveries", "retries", "hedges", "hedges_won"), 0
        )
        self._is_closed = False

    async def invoke(self, call: ScoreCall) -> tuple[Reward, ...]:
        """Score the call's trajectories, or say why that cannot be had."""
        if self._is_closed:
            raise ScoreError("the invoker is closed", is_final=True)
        flight = self._flights.get(call.key)
        if flight is None:
            flight = _Flight(call, asyncio.create_task(self._carry(call)))
            self._flights[call.key] = flight
            flight.task.add_done_callback(lambda task: self._land(call.key, task))
        elif flight.call != call:
            raise ScoreError(f"key {call.key!r} is on its way for another call", is_final=True)
        else:
            self._counts["joined"] += 1
        flight.listeners += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.listeners -= 1
            if not flight.listeners and not flight.task.done():
                flight.task.cancel()
                await asyncio.wait({flight.task})

    async def warm(self) -> None:
        """Begin to start the fewest instances there must be, where the inner one has any."""
        if isinstance(self._inner, _Warmed):
            await self._inner.warm()

    def stats(self) -> Mapping[str, float]:
        """Return counters and gauges since the start, by metric name."""
        return {
            **self._inner.stats(),
            **self._counts,
            "in_flight": self._in_flight,
            "queued": self._queued,
            "latency_p50_s": self._latencies.percentile(0.50),
            "latency_p95_s": self._latencies.percentile(0.95),
            "latency_p99_s": self._latencies.percentile(0.99),
            **self._circuits.stats(),
            "cost": self._cost,
        }

    async def close(self) -> None:
        """End what was started; calls still waiting fail."""
        self._is_closed = True
        tasks = {flight.task for flight in self._flights.values()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._inner.close()

    def _land(self, key: str, task: asyncio.Task[tuple[Reward, ...]]) -> None:
        del self._flights[key]
        if not task.cancelled():
            task.exception()  # Seen, also when nobody listens any more.

    async def _carry(self, call: ScoreCall) -> tuple[Reward, ...]:
        begin_s = self._clock.now()
        account = Account()
        failure = "given up"
        try:
            async with asyncio.timeout(None) as limit:
                rewards = await self._retry(call, account, limit)
            failure = ""
            return rewards
        except TimeoutError:
            limit = f"{call.function}: no score within {self._options.deadline_s:g} s"
            failure = f"{limit}; {account.last or 'no delivery was answered'}"
            raise ScoreError(failure) from None
        except ScoreError as error:
            failure = str(error)
            raise
        except asyncio.CancelledError:
            if not self._is_closed:
                raise
            failure = f"{call.function}: the invoker was closed"
            raise ScoreError(failure) from None
        finally:
            self._write(call, account, self._clock.now() - begin_s, failure)

    def _write(self, call: ScoreCall, account: Account, took_s: float, failure: str) -> None:
        self._counts["failed" if failure else "scored"] += 1
        if not failure:
            self._latencies.add(took_s)
        line = account.close(call, latency_s=took_s, failure=failure, prices=self._options)
        self._cost += line.cost
        if self._on_call is not None:
            self._on_call(line)

    async def _retry(
        self, call: ScoreCall, account: Account, limit: asyncio.Timeout
    ) -> tuple[Reward, ...]:
        for attempt in range(1, self._options.attempts + 1):
            if attempt > 1:
                self._counts["retries"] += 1
                await self._clock.sleep(self._backoff_s(attempt - 1))
            try:
                return await self._attempt(call, account, limit)
            except ScoreError as error:
                account.last = str(error)
                if error.is_final or isinstance(error, _UndeliveredError):
                    raise
        raise ScoreError(f"{account.last} (delivered {account.deliveries} times)")

    def _backoff_s(self, failures: int) -> float:
        options = self._options
        wait_s = min(options.backoff_max_s, options.backoff_s * 2.0 ** min(failures - 1, 60))
        return wait_s * (1 + options.jitter * (2 * self._random.random() - 1))

    def _begin(self, limit: asyncio.Timeout) -> None:
        """Let a call's deadline run, once."""
        if limit.when() is None:
            limit.reschedule(asyncio.get_running_loop().time() + self._options.deadline_s)

    async def _attempt(
        self, call: ScoreCall, account: Account, limit: asyncio.Timeout
    ) -> tuple[Reward, ...]:
        """Deliver a call once there is a place for it and its circuit lets it through."""
        while True:
            await self._wait(call.function, account, limit)
            async with self._place(call.function):
                # Asked again: the circuit may have opened while the call waited for the place.
                if self._circuits.try_pass(call.function):
                    self._begin(limit)
                    return await self._watch(call, account)

    async def _wait(self, function: str, account: Account, limit: asyncio.Timeout) -> None:
        """Wait while the function's circuit is open, unless it is given up."""
        while (stop := self._circuits.stop(function)) is not None:
            self._begin(limit)
            account.last = stop.reason
            if stop.is_given_up:
                raise _UndeliveredError(stop.reason)
            await self._clock.sleep(stop.rest_s)

    async def _watch(self, call: ScoreCall, account: Account) -> tuple[Reward, ...]:
        """Deliver a call, and let its circuit know what came of it."""
        try:
            rewards = await self._hedge(call, account)
        except ScoreError as error:
            if isinstance(error, _UndeliveredError):
                self._circuits.abandoned(call.function)
            else:
                self._circuits.failed(call.function, error)
            raise
        except BaseException:
            self._circuits.abandoned(call.function)
            raise
        self._circuits.succeeded(call.function)
        return rewards

    @contextlib.asynccontextmanager
    async def _place(self, function: str) -> AsyncGenerator[None]:
        """Hold one of the places."""
        if self._queued >= self._queue_limit:
            raise _UndeliveredError(f"{function}: {self._queued} calls wait already")
        self._queued += 1
        try:
            async with asyncio.timeout(self._options.queue_wait_s or None):
                await self._places.acquire()
        except TimeoutError:
            limit_s = self._options.queue_wait_s
            raise _UndeliveredError(f"{function}: no place within {limit_s:g} s") from None
        finally:
            self._queued -= 1
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            self._places.release()

    async def _hedge(self, call: ScoreCall, account: Account) -> tuple[Reward, ...]:
        """Deliver a call, a second time beside it if the first is late and there is a place."""

        def rival() -> Coroutine[Any, Any, tuple[Reward, ...]] | None:
            if self._places.locked():
                return None
            self._counts["hedges"] += 1
            account.hedges += 1
            return self._beside(call, account)

        rewards, is_rivals = await race(
            self._deliver(call, account), late_s=self._late_s(), second=rival
        )
        self._counts["hedges_won"] += is_rivals
        return rewards

    def _late_s(self) -> float | None:
        match self._options.hedge:
            case "never":
                return None
            case "after":
                return self._options.hedge_after_s
            case "p95":
                usual_s = self._delivery_latencies.usual(0.95)
                return None if usual_s is None else max(usual_s, self._options.hedge_after_s)

    async def _beside(self, call: ScoreCall, account: Account) -> tuple[Reward, ...]:
        async with self._place(call.function):
            return await self._deliver(call, account)

    async def _deliver(self, call: ScoreCall, account: Account) -> tuple[Reward, ...]:
        begin_s = self._clock.now()
        account.deliveries += 1
        self._counts["deliveries"] += 1
        try:
            rewards = await self._inner.invoke(call)
        finally:
            took_s = self._clock.now() - begin_s
            account.billed_s += took_s
        self._delivery_latencies.add(took_s)
        return rewards
