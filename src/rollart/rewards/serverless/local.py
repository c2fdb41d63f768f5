"""The local invoker: reward functions in processes of this machine that come and go with the load.

`control.scaling` decides; this module carries out. Each instance is owned by one task from its
start until it is reaped, and every call by one future that is resolved exactly once: with rewards,
or with a ScoreError that says why there are none. A call that takes too long or prints too much is
ended by killing its instance; a new one is started when it is needed. A caller who goes away while
a call runs does not stop it: the answer is thrown away when it comes, and `timeout_s` still holds.
"""

import asyncio
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count

from rollart.clock import Clock, SystemClock
from rollart.control.scaling import Orders, Scaler, Scaling
from rollart.errors import ScoreError
from rollart.rewards.payload import decode_rewards, encode_call
from rollart.rewards.serverless.frames import Frame, Kind
from rollart.rewards.serverless.instance import Settings, restore
from rollart.rewards.serverless.options import Limits
from rollart.rewards.serverless.process import Instance
from rollart.types import Reward, ScoreCall


@dataclass(slots=True, kw_only=True)
class _Flight:
    """A call on its way."""

    call: ScoreCall
    payload: bytes
    answer: asyncio.Future[tuple[Reward, ...]] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    timer: asyncio.TimerHandle | None = None
    reason: str = ""
    """Why it failed, if its instance ended on its account."""


class LocalInvoker:
    """Runs reward functions in processes of this machine."""

    def __init__(
        self,
        scaling: Scaling | None = None,
        *,
        limits: Limits | None = None,
        clock: Clock | None = None,
        functions: Iterable[str] | None = None,
    ) -> None:
        """Take how far it scales, what a call may use, and all that may be called, if not all."""
        self._functions = None if functions is None else tuple(functions)
        self._limits = limits or Limits()
        self._scaling = scaling or Scaling()
        self._scaler = Scaler(self._scaling)
        self._clock = clock or SystemClock()
        self._numbers = count()
        self._flights: dict[int, _Flight] = {}
        self._instances: dict[int, Instance] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._tick: asyncio.TimerHandle | None = None
        self._cold_starts = 0
        self._cold_start_s = 0.0
        self._deaths = 0
        self._is_closed = False

    async def warm(self) -> None:
        """Begin to start the fewest instances there must be; their first calls wait for them."""
        self._obey(self._scaler.tick(now=self._clock.now()))

    async def invoke(self, call: ScoreCall) -> tuple[Reward, ...]:
        """Score the call's trajectories in an instance; wait for a place in it if need be."""
        payload = encode_call(call)
        if len(payload) > self._limits.payload_bytes:
            limit = self._limits.payload_bytes
            message = f"{call.function}: a call of {len(payload)} bytes, more than {limit}"
            raise ScoreError(message, is_final=True)
        if self._is_closed:
            raise ScoreError("the local invoker is closed", is_final=True)
        if not self._scaler.has_room:
            raise ScoreError(f"{self._scaler.waiting} calls wait already")
        number = next(self._numbers)
        flight = self._flights[number] = _Flight(call=call, payload=payload)
        self._obey(self._scaler.called(number, now=self._clock.now()))
        try:
            return await flight.answer
        except asyncio.CancelledError:
            if number in self._flights and flight.timer is None:
                self._scaler.withdrawn(number)
                del self._flights[number]
            raise

    def stats(self) -> Mapping[str, float]:
        """Return counters and gauges since the start, by metric name."""
        return {
            "instances": self._scaler.instances,
            "running": self._scaler.running,
            "waiting": self._scaler.waiting,
            "cold_starts": self._cold_starts,
            "cold_start_s": self._cold_start_s / max(1, self._cold_starts),
            "instance_deaths": self._deaths,
            "utilisation": self._scaler.utilisation(now=self._clock.now()),
        }

    async def close(self) -> None:
        """Kill and reap every instance; calls still waiting fail."""
        self._is_closed = True
        if self._tick is not None:
            self._tick.cancel()
        for number in tuple(self._flights):
            self._fail(number, "the local invoker was closed")
        for instance in self._instances.values():
            instance.kill("closed")
        await asyncio.gather(*self._tasks.values())

    def _obey(self, orders: Orders) -> None:
        if self._is_closed:
            return
        for number in orders.stop:
            self._instances.pop(number).kill("idle")
        for number in orders.start:
            self._tasks[number] = asyncio.create_task(self._own(number))
        for number, instance in orders.run:
            self._hand_over(number, instance)
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None
        due = self._scaler.next_tick
        if due is not None:
            loop = asyncio.get_running_loop()
            delay = max(0.0, due - self._clock.now())
            self._tick = loop.call_later(delay, self._let_go)

    def _let_go(self) -> None:
        self._obey(self._scaler.tick(now=self._clock.now()))

    def _hand_over(self, number: int, instance: int) -> None:
        flight = self._flights[number]
        loop = asyncio.get_running_loop()
        flight.timer = loop.call_later(self._limits.timeout_s, self._expire, number, instance)
        self._instances[instance].send(number, flight.payload)

    def _expire(self, number: int, instance: int) -> None:
        flight = self._flights[number]
        limit = f"no answer within {self._limits.timeout_s:g} s"
        flight.reason = f"{flight.call.function}: {limit}; its instance was killed"
        self._instances[instance].kill("its instance was killed: another call took too long")

    async def _own(self, number: int) -> None:
        """Live the life of one instance, from its start until it is reaped."""
        instance = self._instances[number] = Instance(output_bytes=self._limits.output_bytes)
        try:
            if not self._is_closed and await self._start(number, instance):
                while (frame := await instance.receive()) is not None:
                    self._answer(frame, instance)
        except OSError as error:
            instance.kill(f"its instance could not be started: {error}")
        except asyncio.CancelledError:
            instance.kill("cancelled")
            raise
        finally:
            how = await instance.end()
            del self._tasks[number]
            # One that is no longer here was let go: control has forgotten it.
            if self._instances.pop(number, None) is not None and not self._is_closed:
                self._bury(number, how)

    async def _start(self, number: int, instance: Instance) -> bool:
        begin_s = self._clock.now()
        settings = Settings(
            path=tuple(sys.path),
            concurrency=self._scaling.concurrency,
            memory_bytes=self._limits.memory_bytes,
            payload_bytes=self._limits.payload_bytes,
            functions=self._functions,
        )
        try:
            async with asyncio.timeout(self._limits.start_timeout_s):
                is_ready = await instance.start(settings)
        except TimeoutError:
            instance.kill(f"its instance did not start in {self._limits.start_timeout_s:g} s")
            return False
        if is_ready:
            now = self._clock.now()
            self._cold_starts += 1
            self._cold_start_s += now - begin_s
            self._obey(self._scaler.started(number, now=now))
        return is_ready

    def _answer(self, frame: Frame, instance: Instance) -> None:
        flight = self._flights.get(frame.number)
        if flight is None or flight.timer is None:
            instance.kill(f"its instance answered call {frame.number}, which it was not given")
            return
        if frame.kind is Kind.LEAVING:
            # The call is over when the instance is: no other must be sent there meanwhile.
            flight.reason = str(restore(frame.payload))
            return
        del self._flights[frame.number]
        flight.timer.cancel()
        self._obey(self._scaler.answered(frame.number, now=self._clock.now()))
        if flight.answer.done():
            return
        if frame.kind is Kind.FAILED:
            flight.answer.set_exception(restore(frame.payload))
            return
        try:
            rewards = decode_rewards(frame.payload, count=len(flight.call.trajectories))
        except ScoreError as error:
            flight.answer.set_exception(error)
        else:
            flight.answer.set_result(rewards)

    def _bury(self, number: int, how: str) -> None:
        self._deaths += 1
        orders = self._scaler.died(number, now=self._clock.now())
        for call in orders.lost:
            self._fail(call, how)
        self._obey(orders)

    def _fail(self, number: int, how: str) -> None:
        flight = self._flights.pop(number)
        if flight.timer is not None:
            flight.timer.cancel()
        if not flight.answer.done():
            message = flight.reason or f"{flight.call.function}: {how}"
            flight.answer.set_exception(ScoreError(message))
