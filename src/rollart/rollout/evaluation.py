"""Evaluation: held-out episodes with the weights the engines hold, outside the scheduler.

Sessions have negative ids and slots numbers of their own, so neither meets those of a run that goes
on beside them. Tasks come from a stream of their own seed and say `split = "test"`: an environment
that divides its problems poses none of those it trains on; one that does not may pose them again.

An environment says in the info of its reset which problem it poses (`problem`; else the first
observation stands for it) and whether that is kept from training (`split`: "test"). So an
evaluation says how many different problems it had, how many of them were held out, and how sure
its success is: the 95 % interval counts named problems, because one posed twice is not two.
"""

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from rollart.rollout.env_contract import AttemptError
from rollart.rollout.env_manager import Access, EnvManager, Setup
from rollart.rollout.env_slot import EnvSlot, close_all
from rollart.rollout.tasks import together
from rollart.seeds import derive_seed
from rollart.types import AttemptSpec, Failure, GroupId, Task, Trajectory, TrajectoryId, Version

_Z_95 = 1.959964
HELD_OUT = "test"
"""What an environment calls the split that is kept from training."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PosedProblem:
    """What an environment posed, as far as it says.

    Example:
        PosedProblem(name="b2 c3", split="test")

    """

    name: str
    """The text that determines it, or what the policy saw first."""
    is_named: bool = True
    """Whether the environment gave the name; what is seen first may hide how problems differ."""
    split: str | None = None
    """Which problems it belongs to: "test" if it is kept from training; None: it does not say."""


def success_interval(rate: float, problems: int) -> tuple[float, float]:
    """Return the 95 % interval of a success rate over so many different problems (Wilson's).

    Example:
        >>> [round(end, 3) for end in success_interval(0.25, 8)]
        [0.071, 0.591]

    """
    z = _Z_95 * _Z_95
    middle = (rate + z / 2 / problems) / (1 + z / problems)
    spread = math.sqrt(rate * (1 - rate) / problems + z / 4 / problems / problems)
    half = _Z_95 * spread / (1 + z / problems)
    return max(0.0, middle - half), min(1.0, middle + half)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What an evaluation measured.

    Example:
        Evaluation(trajectories=(trajectory,), problems={-1: PosedProblem(name="b2", split="test")},
                   failed=0).figures["problems"]  # 1.0

    """

    trajectories: tuple[Trajectory, ...]
    problems: Mapping[TrajectoryId, PosedProblem] = field(
        default_factory=dict[TrajectoryId, PosedProblem]
    )
    """What each of them was posed."""
    failed: int
    """Episodes that infrastructure cut short; they count for nothing."""
    last_failure: str = ""
    """What cut the last of them short."""

    @property
    def figures(self) -> dict[str, float]:
        """Success rate with its interval, reward, turns and problems, over all tasks and by task.

        Of no episode at all there are none: a failure of infrastructure is no failure to succeed.
        """
        figures = self._figures(self.trajectories, "") if self.trajectories else {}
        if len(self._names) > 1:
            for name in self._names:
                figures |= self._figures(self._of(name), f"{name}/")
        if self.failed:
            figures["failed"] = float(self.failed)
        return figures

    @property
    def overlaps(self) -> tuple[str, ...]:
        """Say which tasks, by their own account, were evaluated on problems they train on."""
        found: list[str] = []
        for name in self._names:
            problems = self._problems(self._of(name))
            trained = [each for each in problems if each.split not in (None, HELD_OUT)]
            if trained:
                count = f"{len(trained)} of the {len(problems)}"
                found.append(
                    f"{name}: {count} problems of this evaluation are also trained on: there are "
                    "too few to keep some apart, so its success says nothing of new ones"
                )
        return tuple(found)

    @property
    def doubts(self) -> tuple[str, ...]:
        """Why its success may say nothing of new problems, by task; empty if nothing speaks so."""
        unknown = (
            f"{name}: its environment does not say which problems it keeps for "
            "evaluation (info['split'] of reset), so some may also be trained on"
            for name in self._names
            if any(each.split is None for each in self._problems(self._of(name)))
        )
        return (*self.overlaps, *unknown)

    @property
    def _names(self) -> list[str]:
        return sorted({trajectory.task.env for trajectory in self.trajectories})

    def _of(self, name: str) -> list[Trajectory]:
        return [each for each in self.trajectories if each.task.env == name]

    def _problems(self, trajectories: Sequence[Trajectory]) -> set[PosedProblem]:
        own = (self.problems.get(each.id) for each in trajectories)
        return {each for each in own if each is not None}

    def _figures(self, trajectories: Sequence[Trajectory], prefix: str) -> dict[str, float]:
        count, problems = len(trajectories), self._problems(trajectories)
        rate = sum(t.success for t in trajectories) / count
        is_known = bool(problems) and all(each.is_named for each in problems)
        low, high = success_interval(rate, len(problems) if is_known else count)
        figures = {
            "success_rate": rate,
            "success_low": low,
            "success_high": high,
            "reward": sum(t.reward for t in trajectories) / count,
            "turns": sum(len(t.payload) for t in trajectories) / count,
            "problems": float(len(problems)),
        }
        if problems and all(each.split is not None for each in problems):
            figures["held_out"] = float(sum(each.split == HELD_OUT for each in problems))
        return {f"{prefix}{name}": value for name, value in figures.items()}


def greedy_figures(measured: Evaluation) -> dict[str, float]:
    """Return the success of an evaluation that took the likeliest tokens, under its own names.

    Example:
        >>> greedy_figures(measured)
        {'greedy_success_rate': 0.45, 'greedy_success_low': 0.38, 'greedy_success_high': 0.52}

    """
    ends = ("success_rate", "success_low", "success_high")
    return {f"greedy_{name}": measured.figures[name] for name in ends}


class Evaluator:
    """Plays held-out episodes."""

    def __init__(
        self,
        *,
        setups: Mapping[str, Setup],
        access: Access,
        tasks: Callable[[int], Task],
        slots: range,
        seed: int,
    ) -> None:
        """Play as many episodes at once as there are slots."""
        self._setups = setups
        self._access = access
        self._tasks = tasks
        self._slots = [EnvSlot(number) for number in slots]
        self._seed = seed
        self._sessions = 0
        self._turn = asyncio.Lock()

    async def run(self, episodes: int, *, is_greedy: bool = False) -> Evaluation:
        """Play the first `episodes` tasks of the stream, each once, after any run before it.

        Two at once would put two episodes into one environment. `is_greedy`: take the likeliest
        token each time.
        """
        async with self._turn:
            return await self._run(episodes, is_greedy=is_greedy)

    async def close(self) -> None:
        """Close every environment, and give them a while for it."""
        await close_all(self._slots)

    async def _run(self, episodes: int, *, is_greedy: bool) -> Evaluation:
        free = list(self._slots)
        waiting = asyncio.Semaphore(len(free))
        results: list[Trajectory | Failure] = []
        problems: dict[TrajectoryId, PosedProblem] = {}

        async def play(index: int) -> None:
            async with waiting:
                slot = free.pop()
                try:
                    result, problem = await self._play(index, slot, is_greedy=is_greedy)
                    results.append(result)
                    if isinstance(result, Trajectory) and problem is not None:
                        problems[result.id] = problem
                finally:
                    free.append(slot)

        await together(play(index) for index in range(episodes))
        finished = [result for result in results if isinstance(result, Trajectory)]
        failures = [result.message for result in results if isinstance(result, Failure)]
        return Evaluation(
            trajectories=tuple(sorted(finished, key=lambda each: -each.id)),
            problems=problems,
            failed=len(failures),
            last_failure=failures[-1] if failures else "",
        )

    async def _play(
        self, index: int, slot: EnvSlot, *, is_greedy: bool
    ) -> tuple[Trajectory | Failure, PosedProblem | None]:
        task = self._tasks(index)
        setup = self._setups[task.env]
        if is_greedy:
            setup = replace(setup, sampling=replace(setup.sampling, temperature=0.0))
        self._sessions += 1
        spec = AttemptSpec(
            id=TrajectoryId(-self._sessions),
            group=GroupId(-1),
            task=task,
            system=setup.system,
            limits=setup.limits,
            sampling=setup.sampling,
            seed=derive_seed(self._seed, index),
        )
        manager = EnvManager(spec, setup=setup, slot=slot, access=self._access)
        try:
            return await manager.play(_ignore), _problem_of(manager)
        except AttemptError as error:
            return error.failure, None


def _problem_of(manager: EnvManager) -> PosedProblem:
    """Return what an environment posed, by its own account or by what the policy saw first."""
    observation, info = manager.opening
    named, split = info.get("problem"), info.get("split")
    seen = observation if isinstance(observation, str) else f"seed {manager.spec.task.seed}"
    return PosedProblem(
        name=named if isinstance(named, str) else seen,
        is_named=isinstance(named, str),
        split=split if isinstance(split, str) else None,
    )


def _ignore(_version: Version) -> None:
    pass
