"""EnvSlot: one environment slot; it runs one environment at a time and replaces one that fails.

Every call has a time limit, and a call that does not return in time, raises or is cancelled is
abandoned, never awaited (`env_threads` says where it runs and why it holds up nobody). The next
attempt gets a new environment; the old one is closed where it ran, if its call ever returns.
Every way an environment can fail becomes an `AttemptError` here and nowhere else. When a run ends,
environments that are closing get a few seconds for it (`close_all`).
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from rollart.errors import EnvError, describe_error
from rollart.ports import Env
from rollart.rollout.env_contract import (
    AttemptError,
    UnreadableError,
    check_reset,
    check_step,
    gives_arrays,
    where_raised,
)
from rollart.rollout.env_threads import (
    RAISED,
    SHARED,
    Answer,
    BlockedError,
    Call,
    EnvThread,
    EnvThreads,
    ExpiredError,
    HeldUpError,
    LoopThread,
)
from rollart.types import Json, StepOutcome

T = TypeVar("T")
_CLOSING_S = 4.0
"""Longest the end of a run waits for environments to close."""
_SETTLING_S = 2.0
"""Longest it waits for cancelled calls of asynchronous environments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Longest an environment may take, in seconds.

    Example: `Timeouts(reset_s=30.0, step_s=5.0, episode_s=600.0)`
    """

    reset_s: float = 30.0
    step_s: float = 30.0
    episode_s: float = 600.0


class EnvSlot:
    """Runs one environment at a time and replaces it when it fails.

    Example: `slot = EnvSlot(3); await slot.open("lake", make, timeout_s=30.0)`
    """

    def __init__(self, slot: int, *, threads: EnvThreads = SHARED) -> None:
        """Take the number of the slot and the threads its environments run in."""
        self._slot = slot
        self.threads = threads
        self._kind = ""
        self._env: Env | None = None
        self._is_inline = False
        self._check_reset: Callable[[object], Any] = check_reset
        self._check_step: Callable[[object], Any] = check_step
        self._thread: EnvThread | None = None
        """The thread of a synchronous environment."""
        self._home: LoopThread | None = None
        """The loop an asynchronous environment began on: what it holds belongs there."""
        self._closing_unawaited: set[asyncio.Task[None]] = set()
        """Environments that close after a call that may never return."""
        self.closing: set[asyncio.Task[None]] = set()
        """Environments that can be expected to close."""

    async def open(self, kind: str, make: Callable[[int], Env], *, timeout_s: float) -> None:
        """Have an environment of this kind; the one of the attempt before if it is fit."""
        if self._env is not None and self._kind == kind and not self._loop_was_replaced:
            return
        self.close()
        self._kind = kind
        thread = self._thread = EnvThread(self.threads)

        def run() -> Env:
            env = make(self._slot)
            if not _keeps_thread(env):
                thread.release()
            return env

        call = thread.submit(run, unwanted=self._close_late)
        self._env = await self._result(call, timeout_s, "opening it")
        self._is_inline = _is_inline(self._env)
        arrays = gives_arrays(self._env)
        self._check_reset = partial(check_reset, arrays=arrays) if arrays else check_reset
        self._check_step = partial(check_step, arrays=arrays) if arrays else check_step
        if not _keeps_thread(self._env):
            self._thread = None

    async def reset(
        self, seed: int, payload: Mapping[str, Json], *, timeout_s: float
    ) -> tuple[Any, dict[str, Json]]:
        """Start an episode."""
        env = cast("Env", self._env)
        value = await self._call(lambda: env.reset(seed, payload), timeout_s, "reset")
        return self._checked(self._check_reset, value)

    async def step(self, action: Any, *, timeout_s: float) -> StepOutcome:
        """Apply an action."""
        env = cast("Env", self._env)
        value = await self._call(lambda: env.step(action), timeout_s, "step")
        observation, reward, terminated, truncated, info = self._checked(self._check_step, value)
        success = info.get("success")
        return StepOutcome(
            observation=observation,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            success=None if success is None else bool(success),
        )

    async def parse(self, parse: Callable[[str], str], text: str, *, timeout_s: float) -> str:
        """Let the user's parser find the action, in a thread: it may hang like an environment.

        Raises UnreadableError if it raises or hangs, which is the text's doing.
        """
        action, error = await self._answer(self._submit(lambda: parse(text)), timeout_s)
        if error is not None:
            is_env_lost = isinstance(error, ExpiredError)
            said = f"took more than {timeout_s:g} s"
            if is_env_lost:
                self._abandon()
            else:
                said = f"raised {describe_error(error)}"
            self.threads.warn_once(
                f"{self._kind}.parser",
                f"{self._kind}: the parser {said} on {text!r}; such a turn counts as the model's "
                f"mistake (tasks.{self._kind}.unread, .unread_reward)",
            )
            raise UnreadableError(said, is_env_lost=is_env_lost) from error
        if not isinstance(action, str):
            problem = f"the parser must return a str; on {text!r} it returned {action!r}"
            raise AttemptError("parser", f"{self._kind}: {problem}")
        return action

    def close(self) -> None:
        """Close the environment in the background, after the call it is in."""
        self._part_with_env(self.closing)

    def _abandon(self) -> None:
        """Close the environment too, but expect nothing: the call it is in may never return."""
        self._part_with_env(self._closing_unawaited)

    def _part_with_env(self, tasks: "set[asyncio.Task[None]]") -> None:
        env, thread, home = self._env, self._thread, self._home
        tasks = self._closing_unawaited if self._loop_was_replaced else tasks
        self._env = self._thread = self._home = None
        if hasattr(env, "close"):
            self._begin_close(env, tasks, thread=thread, home=home)
        if thread is not None:
            thread.release()

    def _begin_close(
        self,
        env: Any,
        tasks: "set[asyncio.Task[None]]",
        *,
        thread: EnvThread | None = None,
        home: LoopThread | None = None,
    ) -> None:
        call = (thread or self.threads).submit(env.close)
        task = asyncio.create_task(self._finish_close(env, call, home, kind=self._kind))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _finish_close(
        self, env: object, call: Call, home: LoopThread | None, *, kind: str
    ) -> None:
        """Await what `close` returned where the environment ran; warn of what it raised."""
        value, error = await call.future
        if inspect.isawaitable(value):
            if _is_inline(env):
                call = _begin_inline(value)
            else:
                loop = self.threads.loop if home is None or home.is_over else home
                call = loop.submit(value, name=f"{kind}: close")
            _, error = await call.future
        if error is not None and not isinstance(error, BlockedError | HeldUpError):
            said = f"{describe_error(error)}{where_raised(error, env)}"
            self.threads.warn_once(f"{kind}.close", f"{kind}: close raised {said}")

    def _close_late(self, env: Any) -> None:
        """Close an environment that was made when nobody waited for it any more."""
        if hasattr(env, "close"):
            self._begin_close(env, self._closing_unawaited)

    @property
    def _loop_was_replaced(self) -> bool:
        """Whether the loop of the environment was replaced: it can only be closed there."""
        return self._home is not None and self._home.is_replaced

    async def _call(self, run: Callable[[], object], timeout_s: float, what: str) -> object:
        """Run a call where its environment belongs."""
        if self._loop_was_replaced:
            raise self._failed(what, HeldUpError(), timeout_s)
        if self._is_inline:
            try:
                value = run()
            except RAISED as error:
                raise self._failed(what, error, timeout_s) from error
        elif inspect.iscoroutinefunction(getattr(self._env, what)):
            return await self._on_loop(cast("Callable[[], Awaitable[Any]]", run), timeout_s, what)
        else:
            value = await self._result(self._submit(run), timeout_s, what)
        if not inspect.isawaitable(value):
            return value
        # A plain method may return an awaitable: a wrapper around an asynchronous environment.
        if self._is_inline:
            return await self._result(_begin_inline(value), timeout_s, what)
        if self._loop_was_replaced:
            if inspect.iscoroutine(value):
                value.close()
            raise self._failed(what, HeldUpError(), timeout_s)
        return await self._on_loop(value, timeout_s, what)

    async def _on_loop(
        self,
        work: Callable[[], Awaitable[Any]] | Awaitable[Any],
        timeout_s: float,
        what: str,
    ) -> object:
        if self._home is None:
            self._home = self.threads.loop
        call = self._home.submit(work, name=f"{self._kind}: {what}")
        return await self._result(call, timeout_s, what)

    def _submit(self, run: Callable[[], object]) -> Call:
        return (self._thread or self.threads).submit(run)

    async def _result(self, call: Call, timeout_s: float, what: str) -> Any:
        value, error = await self._answer(call, timeout_s)
        if error is not None:
            raise self._failed(what, error, timeout_s) from error
        return value

    async def _answer(self, call: Call, timeout_s: float) -> Answer:
        """Wait for a call until its time is up; the answer says what came of it."""
        timer = asyncio.get_running_loop().call_later(timeout_s, self.threads.expire, call)
        try:
            return await call.future
        except asyncio.CancelledError:
            self.threads.give_up(call)
            self.close()
            raise
        finally:
            timer.cancel()

    def _checked(self, check: Callable[[object], T], value: object) -> T:
        try:
            return check(value)
        except EnvError as error:
            self.close()
            raise AttemptError("env_contract", f"{self._kind}: {error}") from None

    def _failed(self, what: str, error: BaseException, timeout_s: float) -> AttemptError:
        """Part with the environment and say what its failure was."""
        match error:
            case ExpiredError():
                field = f"tasks.{self._kind}.{'step' if what == 'step' else 'reset'}_timeout_s"
                problem = f"{what} took more than {timeout_s:g} s ({field})"
                self._abandon()
                return AttemptError("env_timeout", f"{self._kind}: {problem}")
            case BlockedError():
                problem = f"{what} blocked its event loop instead of awaiting"
                self._abandon()
                return AttemptError("env_timeout", f"{self._kind}: {problem}")
            case HeldUpError():
                self.close()
                problem = f"{what}: another environment blocked their event loop"
                return AttemptError("worker", f"{self._kind}: {problem}")
            case _:
                said = f"{describe_error(error)}{where_raised(error, self._env)}"
                self.close()
                return AttemptError("env_error", f"{self._kind}: {what} raised {said}")


async def close_all(slots: Iterable[EnvSlot], *, grace_s: float = _CLOSING_S) -> None:
    """Close the environments of all slots and give them a while for it."""
    closing: set[asyncio.Task[None]] = set()
    threads: set[EnvThreads] = set()
    for slot in slots:
        threads.add(slot.threads)
        slot.close()
        closing |= slot.closing
    if closing:
        for late in (await asyncio.wait(closing, timeout=grace_s))[1]:
            late.cancel()
    for each in threads:
        await each.settle(min(grace_s, _SETTLING_S))


def _is_inline(env: object) -> bool:
    return bool(getattr(env, "inline", False))


def _keeps_thread(env: object) -> bool:
    """Say whether calls of an environment run in a thread, not on an event loop."""
    methods = (getattr(env, name, None) for name in ("reset", "step"))
    return not _is_inline(env) and not all(map(inspect.iscoroutinefunction, methods))


def _begin_inline(value: Awaitable[Any]) -> Call:
    call = Call(lambda: value)
    call.begin(asyncio.get_running_loop())
    return call
