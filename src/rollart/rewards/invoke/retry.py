"""The reliable invoker: retries, hedges and limits the calls of any other invoker.

A call waits for one of `places` (as many as instances can run at once), then it is delivered. A
failed delivery is repeated after growing, jittered waits; a late one gets a hedge, a second
delivery next to it; while the function's circuit is open, nothing is delivered.

Every caller gets exactly one answer or one ScoreError with the last reason, by its deadline. This
holds because a call with a key already in progress joins that call, and of two deliveries only the
first answer is used. The deadline starts when the call first gets a place or meets an open circuit,
so a burst larger than the places waits instead of failing.
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
    """Return the first answer and whether the hedge gave it.

    After `late_s` without an answer (None: never), `second` may return a hedge. A failure that is
    not final leaves the other delivery its chance; a final one ends both. No delivery is left
    running.
    """
    tasks = [asyncio.create_task(first)]
    try:
        if late_s is not None:
            done, _ = await asyncio.wait(tasks, timeout=late_s)
            hedge = None if done else second()
            if hedge is not None:
                tasks.append(asyncio.create_task(hedge))
        winner = await _winner(set(tasks))
        return winner.result(), winner is not tasks[0]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


async def _winner(pending: set[asyncio.Task[T]]) -> asyncio.Task[T]:
    """Return the first delivery that answered, or whose failure is final or the last one."""
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
    """What one call took and cost: one line of the reward log.

    Example:
        >>> CallLine(
        ...     key="3:0:2", function="math", deliveries=2, hedges=0,
        ...     latency_s=1.4, billed_s=1.1, cost=0.0, failure="",
        ... )

    """

    key: str
    function: str
    deliveries: int
    hedges: int
    latency_s: float
    """Seconds from the call to its answer, including waits and retries."""
    billed_s: float
    """Sum of the seconds of all its deliveries."""
    cost: float
    failure: str
    """Why there is no score; "" if there is one."""


@dataclass(slots=True)
class Account:
    """What a call has used so far.

    Example:
        >>> Account(deliveries=1, billed_s=0.8, last="math: timed out")

    """

    deliveries: int = 0
    hedges: int = 0
    billed_s: float = 0.0
    last: str = ""
    """Why the last delivery failed, or what the call waits for."""

    def close(
        self, call: ScoreCall, *, latency_s: float, failure: str, prices: Reliability
    ) -> CallLine:
        """Return the log line of a call that has ended."""
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
    """Percentiles over the most recent latencies, in seconds."""

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=_KEPT)
        self._sorted: list[float] = []
        self._added = 0

    def add(self, seconds: float) -> None:
        """Add a latency."""
        self._recent.append(seconds)
        self._added += 1

    def percentile(self, share: float) -> float:
        """Return the latency that a share of all did not exceed; 0 without any."""
        return _at(sorted(self._recent), share)

    def usual(self, share: float) -> float | None:
        """Return a percentile that may be slightly old; None while there are few latencies.

        Sorting on every delivery would be slow, so the order is renewed every 32 of them.
        """
        if self._added < _FEWEST:
            return None
        if not self._sorted or self._added % _RENEWED_EVERY == 0:
            self._sorted = sorted(self._recent)
        return _at(self._sorted, share)


def _at(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


class _UndeliveredError(ScoreError):
    """The call was not delivered: too many others wait, or its circuit was given up."""


@dataclass(slots=True)
class _PendingCall:
    """A call in progress and how many callers wait for it."""

    call: ScoreCall
    task: asyncio.Task[tuple[Reward, ...]]
    listeners: int = 0


@runtime_checkable
class _Warmed(Protocol):
    """An invoker that can start instances before the first call."""

    async def warm(self) -> None: ...


class ReliableInvoker:
    """Wraps any invoker with retries, hedging, circuits and a bounded queue."""

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
        """Deliver at most `places` calls at once to `inner`; let `queue_limit` more wait.

        `on_call` receives each ended call's line, `warn` what the user should know.
        """
        self._inner = inner
        self._options = options
        self._clock = clock or SystemClock()
        self._on_call = on_call
        self._queue_limit = queue_limit
        self._places = asyncio.Semaphore(places)
        self._random = Random(options.seed)
        self._circuits = Circuits(options, clock=self._clock, warn=warn)
        self._pending: dict[str, _PendingCall] = {}
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
        """Score the call's trajectories, or raise a ScoreError."""
        if self._is_closed:
            raise ScoreError("the invoker is closed", is_final=True)
        pending = self._pending.get(call.key)
        if pending is None:
            pending = _PendingCall(call, asyncio.create_task(self._complete(call)))
            self._pending[call.key] = pending
            pending.task.add_done_callback(lambda task: self._forget(call.key, task))
        elif pending.call != call:
            raise ScoreError(f"key {call.key!r} is in use by another call", is_final=True)
        else:
            self._counts["joined"] += 1
        pending.listeners += 1
        try:
            return await asyncio.shield(pending.task)
        finally:
            pending.listeners -= 1
            if not pending.listeners and not pending.task.done():
                pending.task.cancel()
                await asyncio.wait({pending.task})

    async def warm(self) -> None:
        """Start the minimum number of instances, if the inner invoker has instances."""
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
        """Cancel all calls and close the inner invoker; waiting callers get a ScoreError."""
        self._is_closed = True
        tasks = {pending.task for pending in self._pending.values()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._inner.close()

    def _forget(self, key: str, task: asyncio.Task[tuple[Reward, ...]]) -> None:
        del self._pending[key]
        if not task.cancelled():
            task.exception()  # Marks it as retrieved, even if every caller was cancelled.

    async def _complete(self, call: ScoreCall) -> tuple[Reward, ...]:
        begin_s = self._clock.now()
        account = Account()
        failure = "cancelled"
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
        most_s = max(options.backoff_max_s, options.backoff_s)
        wait_s = min(most_s, options.backoff_s * 2.0 ** min(failures - 1, 60))
        return wait_s * (1 + options.jitter * (2 * self._random.random() - 1))

    def _begin(self, limit: asyncio.Timeout) -> None:
        """Start a call's deadline, once."""
        if limit.when() is None:
            limit.reschedule(asyncio.get_running_loop().time() + self._options.deadline_s)

    async def _attempt(
        self, call: ScoreCall, account: Account, limit: asyncio.Timeout
    ) -> tuple[Reward, ...]:
        """Deliver a call once it has a place and its circuit lets it pass."""
        while True:
            await self._wait(call.function, account, limit)
            async with self._place(call.function):
                # Checked again: the circuit may have opened while the call waited for its place.
                if self._circuits.try_pass(call.function):
                    self._begin(limit)
                    return await self._watch(call, account)

    async def _wait(self, function: str, account: Account, limit: asyncio.Timeout) -> None:
        """Wait while the function's circuit is open; raise if it was given up."""
        while (stop := self._circuits.stop(function)) is not None:
            self._begin(limit)
            account.last = stop.reason
            if stop.is_given_up:
                raise _UndeliveredError(stop.reason)
            await self._clock.sleep(stop.rest_s)

    async def _watch(self, call: ScoreCall, account: Account) -> tuple[Reward, ...]:
        """Deliver a call and report the result to its circuit."""
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
        """Wait for one of the places and hold it."""
        if self._queued >= self._queue_limit:
            raise _UndeliveredError(f"{function}: the queue is full: {self._queued} calls wait")
        self._queued += 1
        try:
            await self._places.acquire()
        finally:
            self._queued -= 1
        self._in_flight += 1
        try:
            yield
        finally:
            self._in_flight -= 1
            self._places.release()

    async def _hedge(self, call: ScoreCall, account: Account) -> tuple[Reward, ...]:
        """Deliver a call, and a second time if the first is late and a place is free."""

        def hedge() -> Coroutine[Any, Any, tuple[Reward, ...]] | None:
            if self._places.locked():
                return None
            self._counts["hedges"] += 1
            account.hedges += 1
            return self._deliver_hedge(call, account)

        rewards, is_hedge = await race(
            self._deliver(call, account), late_s=self._late_s(), second=hedge
        )
        self._counts["hedges_won"] += is_hedge
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

    async def _deliver_hedge(self, call: ScoreCall, account: Account) -> tuple[Reward, ...]:
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
