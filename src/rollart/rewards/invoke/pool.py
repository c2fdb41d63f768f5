"""The local invoker: reward functions in child processes that come and go with the load.

`control.autoscaling` decides; this module carries out. Each instance is owned by one task from its
start until it is reaped, and every call by one future that is resolved exactly once: with rewards,
or with a ScoreError that says why there are none. A call that takes too long or prints too much is
ended by killing its instance; another one is started when it is needed. A caller that is cancelled
does not stop its call: the answer is dropped when it comes, and `timeout_s` still holds.

`Instance` is one child process as its parent sees it, with its socket and its output. Whatever a
function does there, the parent's terminal stays clean: output is read, its end is kept for the
message about a crash, the rest is dropped. `end` kills the process with all it started, and reaps
it; it is safe at any time.
"""

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count

from rollart.clock import Clock, SystemClock
from rollart.cluster.child_process import ChildProcess, OutputTail
from rollart.control.autoscaling import Orders, Scaler, Scaling
from rollart.errors import ScoreError
from rollart.plugins import REWARD_INSTANCE
from rollart.rewards.invoke.frames import InstanceMessage, Kind, pack, receive_message
from rollart.rewards.invoke.instance import Settings, restore
from rollart.rewards.invoke.options import CallLimits
from rollart.rewards.payload import decode_rewards, encode_call
from rollart.serialization.frames import FrameError
from rollart.types import Reward, ScoreCall

_TAIL_BYTES = 400
_FRAME_BYTES = 64 * 2**20


class _Output(asyncio.Protocol):
    """Reads what a process prints: counts it and keeps its end."""

    def __init__(self, limit_bytes: int, on_flood: Callable[[], None]) -> None:
        self.tail = OutputTail(limit_bytes=_TAIL_BYTES)
        self.count_bytes = 0
        self._limit_bytes = limit_bytes
        self._on_flood = on_flood

    def data_received(self, data: bytes) -> None:
        """Take some output."""
        self.tail.add(data)
        self.count_bytes += len(data)
        if self.count_bytes > self._limit_bytes:
            self._on_flood()


class Instance:
    """A child process that runs reward functions."""

    def __init__(self, *, output_bytes: int) -> None:
        self.kill_reason = ""
        self._output_bytes = output_bytes
        self._output = _Output(output_bytes, self._flooded)
        self._process: ChildProcess | None = None
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._pipe: asyncio.ReadTransport | None = None

    async def start(self, settings: Settings) -> bool:
        """Start the process; return whether it came to take calls."""
        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as undo:
            ours, theirs = socket.socketpair()
            undo.callback(ours.close)
            with theirs:
                fd = theirs.fileno()
                self._process = ChildProcess(REWARD_INSTANCE, [str(fd)], fds=[fd])
            output = undo.enter_context(self._process.output)
            self._reader, self._writer = await asyncio.open_connection(sock=ours)
            self._pipe, _ = await loop.connect_read_pipe(lambda: self._output, output)
            undo.pop_all()
        self._writer.write(pack(InstanceMessage(kind=Kind.SETTINGS, payload=settings.encode())))
        first = await self.receive()
        return first is not None and first.kind is Kind.READY

    def send(self, number: int, payload: bytes) -> None:
        """Hand over a call."""
        assert self._writer is not None
        self._output.count_bytes = 0
        self._writer.write(pack(InstanceMessage(kind=Kind.CALL, number=number, payload=payload)))

    async def receive(self) -> InstanceMessage | None:
        """Wait for the next frame; None if the process has ended or the frame is malformed."""
        assert self._reader is not None
        try:
            return await receive_message(self._reader, limit_bytes=_FRAME_BYTES)
        except FrameError as error:
            self.kill(f"its instance wrote nonsense: {error}")
            return None

    def kill(self, reason: str) -> None:
        """Kill the process and what it started; the first reason is kept."""
        self.kill_reason = self.kill_reason or reason
        if self._process is not None and self._process.is_running:
            self._process.kill()
        if self._writer is not None:
            # A process that left the session may still hold the socket: do not wait for its end.
            self._writer.transport.abort()

    async def end(self) -> str:
        """Make sure the process has ended and its pipes are closed; return how it ended."""
        how = "it could not be started"
        if self._process is not None:
            how = await self._reap(self._process)
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
        if self._pipe is not None:
            self._pipe.close()
        return how

    async def _reap(self, process: ChildProcess) -> str:
        # A process that ends by itself closes its socket a moment before its code is known.
        await asyncio.to_thread(process.wait, 0.0 if self.kill_reason else 1.0)
        was_by_itself = not process.is_running and not self.kill_reason
        process.kill()  # what it started may still run
        await asyncio.to_thread(process.wait)
        if not was_by_itself:
            return self.kill_reason or "its instance closed its socket and was killed"
        output = self._output.tail.text
        how = f"its instance {process.how_it_ended}"
        return f"{how}; last output: {output}" if output else how

    def _flooded(self) -> None:
        self.kill(f"it printed more than {self._output_bytes} bytes and was killed: print less")


@dataclass(slots=True, kw_only=True)
class _PendingCall:
    """A call that waits for its answer."""

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
        limits: CallLimits | None = None,
        clock: Clock | None = None,
        functions: Iterable[str] | None = None,
    ) -> None:
        """Take how far it scales, what a call may use, and all that may be called, if not all."""
        self._functions = None if functions is None else tuple(functions)
        self._limits = limits or CallLimits()
        self._scaling = scaling or Scaling()
        self._scaler = Scaler(self._scaling)
        self._clock = clock or SystemClock()
        self._numbers = count()
        self._calls: dict[int, _PendingCall] = {}
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
        payload = encode_call(call, limit_bytes=self._limits.payload_bytes)
        if self._is_closed:
            raise ScoreError("the local invoker is closed", is_final=True)
        if not self._scaler.has_room:
            raise ScoreError(f"{self._scaler.waiting} calls wait already")
        number = next(self._numbers)
        pending = self._calls[number] = _PendingCall(call=call, payload=payload)
        self._obey(self._scaler.called(number, now=self._clock.now()))
        try:
            return await pending.answer
        except asyncio.CancelledError:
            if number in self._calls and pending.timer is None:
                self._scaler.withdrawn(number)
                del self._calls[number]
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
        for number in tuple(self._calls):
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
        pending = self._calls[number]
        loop = asyncio.get_running_loop()
        pending.timer = loop.call_later(self._limits.timeout_s, self._expire, number, instance)
        self._instances[instance].send(number, pending.payload)

    def _expire(self, number: int, instance: int) -> None:
        pending = self._calls[number]
        limit = f"no answer within {self._limits.timeout_s:g} s"
        pending.reason = f"{pending.call.function}: {limit}; its instance was killed"
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

    def _answer(self, frame: InstanceMessage, instance: Instance) -> None:
        pending = self._calls.get(frame.number)
        if pending is None or pending.timer is None:
            instance.kill(f"its instance answered call {frame.number}, which it was not given")
            return
        if frame.kind is Kind.LEAVING:
            # The call is over when the instance is: no other must be sent there meanwhile.
            pending.reason = str(restore(frame.payload))
            return
        del self._calls[frame.number]
        pending.timer.cancel()
        self._obey(self._scaler.answered(frame.number, now=self._clock.now()))
        if pending.answer.done():
            return
        if frame.kind is Kind.FAILED:
            pending.answer.set_exception(restore(frame.payload))
            return
        try:
            rewards = decode_rewards(frame.payload, count=len(pending.call.trajectories))
        except ScoreError as error:
            pending.answer.set_exception(error)
        else:
            pending.answer.set_result(rewards)

    def _bury(self, number: int, how: str) -> None:
        self._deaths += 1
        orders = self._scaler.died(number, now=self._clock.now())
        for call in orders.lost:
            self._fail(call, how)
        self._obey(orders)

    def _fail(self, number: int, how: str) -> None:
        pending = self._calls.pop(number)
        if pending.timer is not None:
            pending.timer.cancel()
        if not pending.answer.done():
            message = pending.reason or f"{pending.call.function}: {how}"
            pending.answer.set_exception(ScoreError(message))
