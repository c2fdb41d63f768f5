"""Reward functions as Ray tasks: one task for each delivery, on whichever node has room.

A task asks for its share of a node, so calls that find no room anywhere are the demand for which a
cluster with an autoscaler starts nodes, and nodes without tasks are let go. On its node the call
runs in a process of the `local` kind beside the Ray worker: limits on time, memory and output hold
there as here, and a function that ends its process ends no worker. Calls and answers are JSON. What
Ray itself fails at is a ScoreError that may be tried again; Ray's own retries are off, because ours
count, wait and hedge for every kind of invoker alike.
"""

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import RayError

from rollart.control.autoscaling import Scaling
from rollart.errors import ScoreError
from rollart.rewards.invoke.instance import describe, restore
from rollart.rewards.invoke.options import CallLimits, InvokerOptions
from rollart.rewards.invoke.pool import LocalInvoker
from rollart.rewards.payload import decode_call, decode_rewards, encode_call, encode_rewards
from rollart.types import Reward, ScoreCall


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardSettings:
    """What a Ray worker needs to know to run calls.

    Example:
        >>> RewardSettings(
        ...     path=("/home/me/project",),
        ...     directory="/home/me/project",
        ...     env=(("OMP_NUM_THREADS", "1"),),
        ...     idle_s=30.0,
        ...     limits=CallLimits(timeout_s=10.0),
        ... )

    """

    path: tuple[str, ...]
    """Where functions are imported from."""
    directory: str
    """Where names of files are relative to, if the node has it."""
    env: tuple[tuple[str, str], ...]
    """Variables added to the environment of functions."""
    idle_s: float
    limits: CallLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreAnswer:
    """The answer to a call from the node it ran on.

    Example:
        >>> ScoreAnswer(payload=encode_rewards(rewards), is_failure=False, cold_start_s=None)

    """

    payload: bytes
    is_failure: bool
    cold_start_s: float | None
    """Seconds the process took to start; None if it was running already."""


class RayInvoker:
    """Runs reward functions as tasks of the cluster this process is connected to."""

    def __init__(self, options: InvokerOptions, *, env: Mapping[str, str] | None = None) -> None:
        """Take what calls may use and ask for, and what their environment adds."""
        self._limits = options.limits
        self._settings = RewardSettings(
            path=tuple(sys.path),
            directory=str(Path.cwd()),
            env=tuple((env or {}).items()),
            idle_s=options.scaling.idle_s,
            limits=options.limits,
        )
        share = 1 / options.scaling.concurrency
        task: Any = ray.remote(run_call)
        self._task = task.options(
            num_cpus=options.cpus * share,
            resources={name: amount * share for name, amount in options.resources.items()},
            max_retries=0,
            name="rollart-reward",
        )
        self._running = 0
        self._cold_starts = 0
        self._cold_start_s = 0.0
        self._deaths = 0

    async def invoke(self, call: ScoreCall) -> tuple[Reward, ...]:
        """Score the call's trajectories: one task."""
        payload = encode_call(call, limit_bytes=self._limits.payload_bytes)
        if not ray.is_initialized():
            raise ScoreError(f"{call.function}: this process is connected to no Ray cluster")
        answer = await self._carry(call.function, payload)
        if answer.cold_start_s is not None:
            self._cold_starts += 1
            self._cold_start_s += answer.cold_start_s
        if answer.is_failure:
            raise restore(answer.payload)
        return decode_rewards(answer.payload, count=len(call.trajectories))

    def stats(self) -> Mapping[str, float]:
        """Return counters and gauges since the start, by metric name."""
        return {
            "running": self._running,
            "cold_starts": self._cold_starts,
            "cold_start_s": self._cold_start_s / max(1, self._cold_starts),
            "instance_deaths": self._deaths,
        }

    async def close(self) -> None:
        """Do nothing: callers end their tasks, and workers end with the connection."""

    async def _carry(self, function: str, payload: bytes) -> ScoreAnswer:
        """Run the task; kill it if its caller stops waiting."""
        limit_s = self._limits.start_timeout_s + self._limits.timeout_s
        ref: Any = None
        self._running += 1
        try:
            ref = self._task.remote(payload, self._settings)
            async with asyncio.timeout(limit_s):
                answer: ScoreAnswer = await ref
            ref = None
            return answer
        except RayError as error:
            self._deaths += 1
            ref, why = None, str(error).strip().split("\n", 1)[0]
            raise ScoreError(f"{function}: its Ray task failed: {why}") from error
        except TimeoutError:
            fix = "no node has room for it (see `ray status`), or its node is too slow"
            message = f"{function}: its Ray task gave no answer within {limit_s:g} s: {fix}"
            raise ScoreError(message) from None
        finally:
            self._running -= 1
            if ref is not None:
                _end(ref)


def run_call(payload: bytes, settings: RewardSettings) -> ScoreAnswer:
    """Run a call on the node this is called on."""
    worker = _workers.get(settings)
    if worker is None:
        worker = _workers[settings] = _Worker(settings)
    return worker.run(payload)


class _Worker:
    """A Ray worker's own invoker; its thread stays between tasks, to end idle instances."""

    def __init__(self, settings: RewardSettings) -> None:
        sys.path[:] = settings.path
        os.environ.update(settings.env)
        if Path(settings.directory).is_dir():
            os.chdir(settings.directory)
        self._payload_bytes = settings.limits.payload_bytes
        self._invoker = LocalInvoker(
            Scaling(max_instances=1, idle_s=settings.idle_s), limits=settings.limits
        )
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()

    def run(self, payload: bytes) -> ScoreAnswer:
        """Run a call to its end."""
        return asyncio.run_coroutine_threadsafe(self._answer(payload), self._loop).result()

    async def _answer(self, payload: bytes) -> ScoreAnswer:
        before = self._invoker.stats()
        try:
            call = decode_call(payload, limit_bytes=self._payload_bytes)
            answer, is_failure = encode_rewards(await self._invoker.invoke(call)), False
        except ScoreError as error:
            answer, is_failure = describe(error), True
        after = self._invoker.stats()
        is_cold = after["cold_starts"] > before["cold_starts"]
        total_s = after["cold_start_s"] * after["cold_starts"]
        took_s = total_s - before["cold_start_s"] * before["cold_starts"]
        cold_start_s = took_s if is_cold else None
        return ScoreAnswer(payload=answer, is_failure=is_failure, cold_start_s=cold_start_s)


_workers: dict[RewardSettings, _Worker] = {}


def _end(ref: Any) -> None:
    """Kill a task, and the worker it runs on."""
    if ray.is_initialized():
        with contextlib.suppress(RayError, ValueError):
            ray.cancel(ref, force=True)
