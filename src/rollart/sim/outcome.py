"""Outcome: what a simulated run did, step by step and pool by pool.

The first steps fill an empty pipeline and are left out of every rate.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from rollart.events import (
    Command,
    Event,
    StepFinished,
    Train,
    TrajectoryCancelled,
    TrajectoryFailed,
    TrajectoryFinished,
)
from rollart.sim.simulator import Simulator, World


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One optimizer step."""

    began_s: float
    ended_s: float
    tokens: float
    trajectories: int
    staleness: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Figures of a run."""

    steps: tuple[Step, ...]
    skipped: int
    """Steps at the start that rates leave out."""
    launched_tokens: float
    """Tokens sampled in all, trained or not."""
    events: int
    seconds: float
    utilisation: dict[str, float]
    """Share of the time in which each pool's engines were busy."""
    reward_utilisation: float

    @property
    def step_s(self) -> float:
        """Mean time from one optimizer step's end to the next one's."""
        kept = self.steps[self.skipped :]
        return (kept[-1].ended_s - self._start_s) / len(kept)

    @property
    def tokens_per_s(self) -> float:
        """Trained tokens, read and sampled, per second."""
        kept = self.steps[self.skipped :]
        return sum(step.tokens for step in kept) / (kept[-1].ended_s - self._start_s)

    @property
    def rollout_s(self) -> float:
        """Mean time from one step's end until the next one's batch was there."""
        ends = [self._start_s, *(step.ended_s for step in self.steps[self.skipped :])]
        begins = [step.began_s for step in self.steps[self.skipped :]]
        return sum(b - e for b, e in zip(begins, ends, strict=False)) / len(begins)

    @property
    def train_s(self) -> float:
        """Mean time of an optimizer step."""
        kept = self.steps[self.skipped :]
        return sum(step.ended_s - step.began_s for step in kept) / len(kept)

    @property
    def staleness(self) -> int:
        """The largest staleness of a trained group."""
        return max(step.staleness for step in self.steps)

    @property
    def _start_s(self) -> float:
        return self.steps[self.skipped - 1].ended_s if self.skipped else 0.0


@dataclass(slots=True)
class Collector:
    """An observer that remembers what an outcome is made of."""

    steps: list[Step] = field(default_factory=list[Step])
    sampled: float = 0.0
    _train: tuple[float, Train] | None = None

    def __call__(self, now: float, event: Event, commands: Sequence[Command]) -> None:
        """Take in one event and its commands."""
        match event:
            case StepFinished():
                assert self._train is not None
                began, train = self._train
                self.steps.append(
                    Step(
                        began_s=began,
                        ended_s=now,
                        tokens=event.metrics["tokens"],
                        trajectories=sum(len(group) for group in train.groups),
                        staleness=train.staleness,
                    )
                )
            case TrajectoryFinished():
                self.sampled += event.info.sampled_tokens
            case TrajectoryFailed() | TrajectoryCancelled():
                self.sampled += event.sampled_tokens
            case _:
                pass
        for command in commands:
            if isinstance(command, Train):
                self._train = (now, command)


def simulate(world: World, *, skip: int = 1) -> Outcome:
    """Run a world and return its figures."""
    collector = Collector()
    simulator = Simulator(world, observers=[collector])
    simulator.run()
    return outcome_of(simulator, collector, skip=skip)


def outcome_of(simulator: Simulator, collector: Collector, *, skip: int = 1) -> Outcome:
    """Return the figures of a run that has ended."""
    seconds = simulator.loop.now
    return Outcome(
        steps=tuple(collector.steps),
        skipped=min(skip, len(collector.steps) - 1),
        launched_tokens=collector.sampled,
        events=simulator.events,
        seconds=seconds,
        utilisation=simulator.fleet.utilisation(seconds),
        reward_utilisation=simulator.rewards.utilisation,
    )
