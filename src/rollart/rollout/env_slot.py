"""Seat: one environment slot's hold on its environments, with a time limit on every call.

A synchronous environment runs in the seat's own thread, an asynchronous one on a loop that all of
them share apart from the driver's (`env_loop`), one that declares itself `inline` on the driver's.
A call that does not answer in time, fails or is cancelled is abandoned, never awaited: its thread
and its environment are left behind, to be closed where it ran if the call ever returns, and the
next attempt gets new ones. Every way an environment can fail becomes an `AttemptError` here only.
When a run ends, environments that are closing have a while for it (`close_all`).
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from rollart.control.episode import StepOutcome
from rollart.errors import EnvError, describe_error
from rollart.ports import Env
from rollart.rollout.env_contract import AttemptError, check_reset, check_step, where_raised
from rollart.rollout.env_threads import (
    RAISED,
    SHARED,
    Answer,
    EnvLoop,
    EnvThread,
    LoopThread,
    Make,
    answer,
)
from rollart.types import Json

T = TypeVar("T")
_CLOSING_S = 4.0
"""Longest the end of a run waits for environments to close."""
_SETTLING_S = 2.0
"""Longest it waits for what asynchronous environments do when a call of theirs is cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Longest an environment may take, in seconds."""

    reset_s: float = 30.0
    step_s: float = 30.0
    episode_s: float = 600.0


class EnvSlot:
    """Runs one environment at a time and replaces it when it misbehaves."""

    def __init__(self, slot: int, *, loop: EnvLoop = SHARED) -> None:
        """Take the number of the slot, and where asynchronous environments run."""
        self._slot = slot
        self.loop = loop
        self._home: LoopThread | None = None
        """Where an asynchronous environment began: what it holds belongs to that loop."""
        self._env: Env | None = None
        self._is_inline = False
        self._kind = ""
        self._thread: EnvThread | None = None
        self._abandoned: set[asyncio.Future[Answer]] = set()
        self.closing: set[asyncio.Future[Answer]] = set()
        """Environments that were left behind and may be expected to close."""

    async def open(self, kind: str, make: Callable[[int], Env], *, timeout_s: float) -> None:
        """Have an environment of this kind, the one of the attempt before if it is fit."""
        if self._env is None or self._kind != kind or self._is_homeless:
            self.close()
            self._kind = kind
            try:
                made = await self._ask_thread(
                    lambda: make(self._slot), timeout_s, unwanted=self._close_late
                )
            except TimeoutError:
                raise self._hung("opening it", timeout_s) from None
            self._env = cast("Env", self._unwrap("opening it", made))
            self._is_inline = bool(getattr(self._env, "inline", False))

    async def reset(
        self, seed: int, payload: Mapping[str, Json], *, timeout_s: float
    ) -> tuple[str, dict[str, Json]]:
        """Start an episode."""
        env = cast("Env", self._env)
        value = await self._call(lambda: env.reset(seed, payload), timeout_s, "reset")
        return self._checked(check_reset, value)

    async def step(self, action: str, *, timeout_s: float) -> StepOutcome:
        """Apply an action."""
        env = cast("Env", self._env)
        value = await self._call(lambda: env.step(action), timeout_s, "step")
        observation, reward, terminated, truncated, info = self._checked(check_step, value)
        success = info.get("success")
        return StepOutcome(
            observation=observation,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            success=None if success is None else bool(success),
        )

    async def parse(self, parse: Callable[[str], str], text: str, *, timeout_s: float) -> str:
        """Have the user's parser find the action, where it can hang nothing but this seat."""
        limit = f"took more than {timeout_s:g} s"
        try:
            action, error = await self._ask_thread(lambda: parse(text), timeout_s)
        except TimeoutError:
            self._leave_behind(self._abandoned)
            raise AttemptError("parser", f"{self._kind}: the parser {limit} on {text!r}") from None
        if error is not None:
            problem = f"the parser raised {describe_error(error)} on {text!r}"
            raise AttemptError("parser", f"{self._kind}: {problem}") from error
        if not isinstance(action, str):
            problem = f"the parser must return a str; on {text!r} it returned {action!r}"
            raise AttemptError("parser", f"{self._kind}: {problem}")
        return action

    def close(self) -> None:
        """Leave the environment behind, to close itself when what it is doing ends, if ever."""
        self._leave_behind(self.closing)

    def _leave_behind(self, kept: "set[asyncio.Future[Answer]]") -> None:
        """Have the environment closed after what its thread is doing, which is then done with."""
        is_homeless = self._is_homeless
        home, self._home = self._home, None
        env, self._env = self._env, None
        thread, self._thread = self._thread, None
        if hasattr(env, "close"):
            closing = self._close(env, thread or EnvThread(), home)
            self._keep(closing, self._abandoned if is_homeless else kept)
        else:
            if thread is not None:
                thread.abandon()
            if home is not None:
                home.leave()

    @property
    def _is_homeless(self) -> bool:
        return self._home is not None and self.loop.is_left(self._home)

    def _close(
        self, env: Any, thread: EnvThread, home: LoopThread | None = None
    ) -> "asyncio.Future[Answer]":
        called = thread.submit(env.close)
        thread.abandon()
        return asyncio.ensure_future(self._closed(env, called, home, kind=self._kind))

    async def _closed(
        self, env: object, called: "asyncio.Future[Answer]", home: LoopThread | None, *, kind: str
    ) -> Answer:
        """Return what came of a call of `close`, awaited where the environment ran if need be."""
        try:
            value, error = await called
            if inspect.isawaitable(value):
                awaited = cast("Awaitable[object]", value)
                value, error = await self._begin_close(env, lambda: awaited, home, f"{kind}: close")
        finally:
            if home is not None:
                home.leave()
        if error is not None:
            said = f"{describe_error(error)}{where_raised(error, env)}"
            self.loop.warn_once(f"{kind}.close", f"{kind}: close raised {said}")
        return value, error

    def _begin_close(
        self, env: object, make: Make, home: LoopThread | None, name: str
    ) -> "asyncio.Future[Answer]":
        if getattr(env, "inline", False):
            return asyncio.ensure_future(answer(make))
        return (home or self.loop.thread).begin(make, name=name).future

    def _close_late(self, env: object) -> None:
        """Close an environment that was made when nobody waited for it any more."""
        if hasattr(env, "close"):
            self._keep(self._close(env, EnvThread()), self._abandoned)

    def _checked(self, check: Callable[[object], T], value: object) -> T:
        try:
            return check(value)
        except EnvError as error:
            self.close()
            raise AttemptError("env_contract", f"{self._kind}: {error}") from None

    async def _call(self, call: Callable[[], object], timeout_s: float, what: str) -> object:
        method = getattr(self._env, what)
        if self._is_homeless:
            raise self._held_up(what)
        if self._is_inline:
            try:
                value = call()
            except RAISED as error:
                raise self._broken(what, error) from error
        elif inspect.iscoroutinefunction(method):
            return await self._on_loop(cast("Make", call), timeout_s, what)
        else:
            value = await self._in_thread(call, timeout_s, what)
        if not inspect.isawaitable(value):
            return value
        if self._is_inline:  # what a plain function made, such as a wrapper's
            task = asyncio.ensure_future(answer(lambda: value))
            return await self._in_task(task, timeout_s, what)
        if self._is_homeless:
            if inspect.iscoroutine(value):
                value.close()
            raise self._held_up(what)
        return await self._on_loop(lambda: value, timeout_s, what)

    async def _on_loop(self, make: Make, timeout_s: float, what: str) -> object:
        if self._home is None:
            self._home = self.loop.thread
            self._home.enter()
        task = self.loop.submit(make, name=f"{self._kind}: {what}")
        return await self._in_task(task, timeout_s, what)

    async def _in_task(self, task: "asyncio.Future[Answer]", timeout_s: float, what: str) -> object:
        try:
            done, _ = await asyncio.wait({task}, timeout=timeout_s)
        except asyncio.CancelledError:
            self._leave(task, is_overdue=False)
            self.close()
            raise
        if not done:
            self._leave(task, is_overdue=True)
        if self.loop.is_held_up(task):
            raise self._held_up(what)
        if self.loop.blocks(task):
            raise self._blocking(what)
        if not done:
            raise self._hung(what, timeout_s)
        return self._unwrap(what, task.result())

    def _leave(self, task: "asyncio.Future[Answer]", *, is_overdue: bool) -> None:
        """Cancel a call that is not waited for any more."""
        if self._home is not None:
            self.loop.leave_if_blocked(task, is_overdue=is_overdue)
        self.loop.cancel(task)
        self._keep(task, self._abandoned)

    async def _in_thread(self, call: Callable[[], object], timeout_s: float, what: str) -> object:
        try:
            answer = await self._ask_thread(call, timeout_s)
        except TimeoutError:
            raise self._hung(what, timeout_s) from None
        return self._unwrap(what, answer)

    async def _ask_thread(
        self,
        call: Callable[[], object],
        timeout_s: float,
        *,
        unwanted: Callable[[object], None] | None = None,
    ) -> Answer:
        """Run a call in the seat's thread; raises TimeoutError when it does not answer.

        `unwanted` is given what it returns later than that.
        """
        if self._thread is None:
            self._thread = EnvThread()
        future = self._thread.submit(call, unwanted)
        timer = asyncio.get_running_loop().call_later(timeout_s, _expire, future)
        try:
            return await future
        except asyncio.CancelledError:
            if unwanted is not None and _is_answered(future):
                value, error = future.result()  # it came a moment before
                if error is None:
                    unwanted(value)
            self.close()
            raise
        finally:
            timer.cancel()

    def _unwrap(self, what: str, answer: Answer) -> object:
        result, error = answer
        if error is not None:
            raise self._broken(what, error) from error
        return result

    def _keep(self, task: "asyncio.Future[Answer]", kept: "set[asyncio.Future[Answer]]") -> None:
        """Hold a task that nobody awaits until it ends."""
        kept.add(task)
        task.add_done_callback(kept.discard)

    def _held_up(self, what: str) -> AttemptError:
        self.close()
        message = f"{self._kind}: {what}: another environment blocked their event loop"
        return AttemptError("worker", message)

    def _blocking(self, what: str) -> AttemptError:
        self._leave_behind(self._abandoned)  # its close may never come
        message = f"{self._kind}: {what} blocked its event loop instead of awaiting"
        return AttemptError("env_timeout", message)

    def _hung(self, what: str, timeout_s: float) -> AttemptError:
        self._leave_behind(self._abandoned)  # its close may never come
        field = f"tasks.{self._kind}.{'step' if what == 'step' else 'reset'}_timeout_s"
        message = f"{self._kind}: {what} took more than {timeout_s:g} s ({field})"
        return AttemptError("env_timeout", message)

    def _broken(self, what: str, error: BaseException) -> AttemptError:
        where = where_raised(error, self._env)
        self.close()
        said = f"{describe_error(error)}{where}"
        return AttemptError("env_error", f"{self._kind}: {what} raised {said}")


async def close_all(seats: Iterable[EnvSlot], *, grace_s: float = _CLOSING_S) -> None:
    """Close the environments of all seats, and give them a while for it."""
    closing: set[asyncio.Future[Answer]] = set()
    loops: set[EnvLoop] = set()
    for seat in seats:
        loops.add(seat.loop)
        seat.close()
        closing |= seat.closing
    if closing:
        for late in (await asyncio.wait(closing, timeout=grace_s))[1]:
            late.cancel()
    for loop in loops:
        await loop.settle(min(grace_s, _SETTLING_S))


def _is_answered(future: "asyncio.Future[Answer]") -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _expire(future: "asyncio.Future[Answer]") -> None:
    if not future.done():
        future.set_exception(TimeoutError())
