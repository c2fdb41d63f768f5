"""EnvManager: drives one Episode in one environment, from reset to record.

Its requests are routed in its own process, so no turn visits the controller. Whatever goes wrong
below it arrives as `AttemptError`; whatever is cancelled is left behind, not awaited.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rollart.control.episode import Episode, EpisodeLimits, Spec, StepOutcome
from rollart.errors import EnvError
from rollart.inference.driver import RequestError
from rollart.ports import Env, Renderer
from rollart.rollout.barrier import Barrier
from rollart.rollout.engine_client import EngineClient
from rollart.rollout.env_contract import AttemptError
from rollart.rollout.env_slot import EnvSlot, Timeouts
from rollart.types import (
    Completion,
    EngineId,
    Request,
    Sampling,
    Trajectory,
    Version,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """How one kind of task is run."""

    make: Callable[[int], Env]
    """Makes the environment of a slot."""
    parse: Callable[[str], str] | None = None
    """The user's parser of actions; None strips the text."""
    system: str
    limits: EpisodeLimits
    sampling: Sampling
    timeouts: Timeouts
    scoring: Literal["env", "each", "group"] = "env"
    """Where rewards come from: the environment, reward functions that take each attempt by itself,
    or such that compare all attempts at a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """What every EnvManager of a process shares."""

    renderer: Renderer
    switchboard: EngineClient
    gate: Barrier
    is_fresh: Callable[[Version], bool]


class EnvManager:
    """One attempt at one task."""

    def __init__(self, spec: Spec, *, setup: Setup, seat: EnvSlot, access: Access) -> None:
        self.episode = Episode(spec, renderer=access.renderer)
        self._setup = setup
        self._seat = seat
        self._access = access
        self.served: Counter[EngineId] = Counter()
        """Turns by the engine that completed them."""

    async def play(self, on_birth: Callable[[Version], None]) -> Trajectory:
        """Run the episode to its end; raises AttemptError when infrastructure fails under it."""
        limit_s = self._setup.timeouts.episode_s
        try:
            async with asyncio.timeout(limit_s):
                return await self._play(on_birth)
        except TimeoutError:
            self._seat.close()
            message = f"{self._task_name}: the episode took more than {limit_s:g} s"
            raise AttemptError("episode_timeout", message) from None
        finally:
            self._access.switchboard.forget(self.episode.spec.id)

    async def _play(self, on_birth: Callable[[Version], None]) -> Trajectory:
        episode, access = self.episode, self._access
        request = await self._open()
        while request is not None:
            await access.gate.arrive(episode.spec.id)
            completion = await self._generate(request)
            if request.turn == 0:
                on_birth(completion.versions[0])
            action = await self._parse(episode.complete(completion))
            if request.turn > 0 and not access.is_fresh(self._born()):
                # Too old to train on: the Cancel that says so is on its way.
                await asyncio.Event().wait()
            await access.gate.arrive(episode.spec.id)
            request = episode.observe(await self._step(action))
        return episode.finish()

    async def _open(self) -> Request:
        spec, timeouts = self.episode.spec, self._setup.timeouts
        await self._seat.open(self._task_name, self._setup.make, timeout_s=timeouts.reset_s)
        observation, info = await self._seat.reset(
            spec.task.seed, spec.task.payload, timeout_s=timeouts.reset_s
        )
        payload = None if self._setup.scoring == "env" else info.get("payload")
        if payload is not None and not isinstance(payload, dict):
            message = f"info['payload'] must be a dict; it is {payload!r}"
            raise AttemptError("env_contract", f"{self._task_name}: {message}")
        try:
            return self.episode.start(observation, payload)
        except EnvError as error:
            raise AttemptError("env_contract", f"{self._task_name}: {error}") from None

    async def _generate(self, request: Request) -> Completion:
        try:
            completion = await self._access.switchboard.complete(request)
        except RequestError as error:
            raise AttemptError("engine", f"{self._task_name}: {error}") from error
        self.served[self._access.switchboard.home(request.session)] += 1
        return completion

    async def _step(self, action: str) -> StepOutcome:
        return await self._seat.step(action, timeout_s=self._setup.timeouts.step_s)

    async def _parse(self, text: str) -> str:
        parse = self._setup.parse
        if parse is None:
            return text.strip()
        return await self._seat.parse(parse, text, timeout_s=self._setup.timeouts.step_s)

    def _born(self) -> Version:
        born = self.episode.born
        assert born is not None
        return born

    @property
    def _task_name(self) -> str:
        return self.episode.spec.task.env
