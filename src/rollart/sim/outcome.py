"""Outcome: what a simulated run did, step by step and pool by pool.

The first steps fill an empty pipeline and are left out of every rate. No step drains it: what is
simulated here is always the beginning of a longer run. Only the use of reward workers covers all of
it.

Step rows: a simulated run as one row per optimizer step, the figures a person compares.

Counting tokens and their fate is left to `observe.metrics`, which does it for live runs too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from rollart.events import (
    Command,
    Event,
    StepFinished,
    Train,
)
from rollart.observe.metrics import Metrics, Row
from rollart.sim.fleet import Fleet
from rollart.sim.simulator import Simulator
from rollart.sim.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One optimizer step."""

    began_s: float
    ended_s: float
    tokens: float
    trajectories: int
    staleness: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOutcome:
    """Figures of a run."""

    steps: tuple[Step, ...]
    skipped: int
    """Steps at the start that rates leave out."""
    events: int
    """What the scheduler took in."""
    actions: int
    """What happened on the loop; some of it became events."""
    seconds: float
    utilisation: dict[str, float]
    """Share of the kept steps' time in which each pool's engines were busy."""
    reward_utilisation: float
    """Share of the time reward workers existed, from the first to the last event, they scored."""

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
    _train: tuple[float, Train] | None = None
    _fleet: Fleet | None = None
    _busy_s: list[Mapping[str, float]] = field(default_factory=list[Mapping[str, float]])
    """By step, how long each pool had been busy at its end."""

    def attach(self, fleet: Fleet) -> None:
        """Know the engines whose use is told."""
        self._fleet = fleet

    def utilisation(self, skipped: int) -> dict[str, float]:
        """Return the share of the time each pool was busy, the first steps left out."""
        seconds, last = self.steps[-1].ended_s, self._busy_s[-1]
        if not skipped:
            return {pool: busy / seconds for pool, busy in last.items()}
        seconds, first = seconds - self.steps[skipped - 1].ended_s, self._busy_s[skipped - 1]
        return {pool: (busy - first[pool]) / seconds for pool, busy in last.items()}

    def __call__(self, now: float, event: Event, commands: Sequence[Command]) -> None:
        """Take in one event and its commands."""
        match event:
            case StepFinished():
                assert self._train is not None
                assert self._fleet is not None
                self._busy_s.append(self._fleet.busy_s())
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
            case _:
                pass
        for command in commands:
            if isinstance(command, Train):
                self._train = (now, command)


def simulate(world: World, *, skip: int = 1) -> SimOutcome:
    """Run a world as the beginning of a longer run and return its figures."""
    collector = Collector()
    simulator = Simulator(replace(world, open_ended=True), observers=[collector])
    collector.attach(simulator.fleet)
    simulator.run()
    return outcome_of(simulator, collector, skip=skip)


def outcome_of(simulator: Simulator, collector: Collector, *, skip: int = 1) -> SimOutcome:
    """Return the figures of a run that has ended."""
    skipped = min(skip, len(collector.steps) - 1)
    return SimOutcome(
        steps=tuple(collector.steps),
        skipped=skipped,
        events=simulator.events,
        actions=simulator.actions,
        seconds=simulator.loop.now,
        utilisation=collector.utilisation(skipped),
        reward_utilisation=simulator.rewards.utilisation,
    )


_WASTED = "wasted/"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """One optimizer step."""

    step: int
    ended_s: float
    step_s: float
    """Time since the step before ended."""
    wait_s: float
    """Of that, the time the trainer waited for rollout."""
    train_s: float
    """Of that, the time it trained."""
    tokens_per_s: float
    """Trained tokens, read and sampled, per second."""
    staleness: int
    """The largest of a trained trajectory."""
    utilisation: dict[str, float]
    """Share of the time in which each pool's engines were busy."""
    wasted: dict[str, int]
    """Tokens sampled in vain, by cause."""


class StepRows:
    """An observer that makes the rows."""

    def __init__(self) -> None:
        self.rows: list[StepRow] = []
        self.metrics = Metrics()
        self._fleet: Fleet | None = None
        self._busy_s: dict[str, float] = {}

    def attach(self, fleet: Fleet) -> None:
        """Know the engines whose use is told."""
        self._fleet = fleet

    def __call__(self, now: float, event: Event, commands: Sequence[Command]) -> None:
        """Take in one event and its commands."""
        row = self.metrics.add(now, event, commands)
        if row is not None:
            self.rows.append(self._row(row))

    def _row(self, row: Row) -> StepRow:
        seconds = row["step_s"]
        assert self._fleet is not None
        before, self._busy_s = self._busy_s, self._fleet.busy_s()
        return StepRow(
            step=int(row["step"]),
            ended_s=row["time_s"],
            step_s=seconds,
            wait_s=row["trainer_wait_s"],
            train_s=row["train_s"],
            tokens_per_s=row["trainer/tokens"] / seconds if seconds else 0.0,
            staleness=int(row["staleness_max"]),
            utilisation={
                pool: (busy - before.get(pool, 0.0)) / seconds if seconds else 0.0
                for pool, busy in self._busy_s.items()
            },
            wasted={
                name.removeprefix(_WASTED): int(count)
                for name, count in row.items()
                if name.startswith(_WASTED) and count
            },
        )
