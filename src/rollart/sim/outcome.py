"""Outcome: what a simulated run did: totals (`SimOutcome`), a row per step, and pool use over time.

The first steps fill an empty pipeline and are left out of every rate. No step drains it, because
`simulate` treats every run as the start of a longer one. Only the use of reward workers covers the
whole run. Tokens and waste are counted by `observe.metrics`, which does it for live runs too.
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
    """One optimizer step.

    Example:
        Step(began_s=410.0, ended_s=520.0, tokens=4.1e6, trajectories=512, staleness=1)

    """

    began_s: float
    ended_s: float
    tokens: float
    trajectories: int
    staleness: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SimOutcome:
    """Figures of a simulated run.

    Example:
        outcome = simulate(world, skip=2)
        outcome.step_s, outcome.tokens_per_s, outcome.utilisation  # 231.4, 17_900.0, {"h800": 0.8}

    """

    steps: tuple[Step, ...]
    skipped: int
    """Steps at the start that rates leave out."""
    events: int
    """Events the scheduler handled."""
    actions: int
    """Actions on the loop; some of them posted scheduler events."""
    seconds: float
    utilisation: dict[str, float]
    """Share of the kept steps' time in which each pool's engines were busy."""
    reward_utilisation: float
    """Share of the reward workers' existence, over the whole run, in which they scored."""

    @property
    def step_s(self) -> float:
        """Mean time from the end of one optimizer step to the end of the next."""
        kept = self.steps[self.skipped :]
        return (kept[-1].ended_s - self._start_s) / len(kept)

    @property
    def tokens_per_s(self) -> float:
        """Trained tokens (prompt and response) per second."""
        kept = self.steps[self.skipped :]
        return sum(step.tokens for step in kept) / (kept[-1].ended_s - self._start_s)

    @property
    def rollout_s(self) -> float:
        """Mean time from the end of one step until the next batch was complete."""
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
    """An observer that records what `SimOutcome` is computed from.

    Example:
        collector = Collector()
        simulator = Simulator(world, observers=[collector])
        collector.attach(simulator.fleet)

    """

    steps: list[Step] = field(default_factory=list[Step])
    _train: tuple[float, Train] | None = None
    _fleet: Fleet | None = None
    _busy_s: list[Mapping[str, float]] = field(default_factory=list[Mapping[str, float]])
    """By step: the busy time of each pool when the step ended."""

    def attach(self, fleet: Fleet) -> None:
        """Set the engines whose use is measured."""
        self._fleet = fleet

    def utilisation(self, skipped: int) -> dict[str, float]:
        """Return the share of the time each pool was busy, without the first `skipped` steps."""
        seconds, last = self.steps[-1].ended_s, self._busy_s[-1]
        if not skipped:
            return {pool: busy / seconds for pool, busy in last.items()}
        seconds, first = seconds - self.steps[skipped - 1].ended_s, self._busy_s[skipped - 1]
        return {pool: (busy - first[pool]) / seconds for pool, busy in last.items()}

    def __call__(self, now: float, event: Event, commands: Sequence[Command]) -> None:
        """Note one event and its commands."""
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
    """Simulate a world as the start of a longer run and return its figures."""
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
    """One optimizer step, as `rollart simulate` prints it.

    Example:
        StepRow(step=4, ended_s=930.0, step_s=230.0, wait_s=120.0, train_s=110.0,
                tokens_per_s=17_900.0, staleness=1, utilisation={"h800": 0.8}, wasted={})

    """

    step: int
    ended_s: float
    step_s: float
    """Time since the previous step ended."""
    wait_s: float
    """Part of `step_s` in which the trainer waited for rollout."""
    train_s: float
    """Part of `step_s` in which it trained."""
    tokens_per_s: float
    """Trained tokens (prompt and response) per second."""
    staleness: int
    """The largest staleness of a trained trajectory."""
    utilisation: dict[str, float]
    """Share of the time in which each pool's engines were busy."""
    wasted: dict[str, int]
    """Tokens sampled but never trained on, by cause."""


class StepRows:
    """An observer that makes one `StepRow` per optimizer step."""

    def __init__(self) -> None:
        self.rows: list[StepRow] = []
        self.metrics = Metrics()
        self._fleet: Fleet | None = None
        self._busy_s: dict[str, float] = {}

    def attach(self, fleet: Fleet) -> None:
        """Set the engines whose use is measured."""
        self._fleet = fleet

    def __call__(self, now: float, event: Event, commands: Sequence[Command]) -> None:
        """Note one event and its commands."""
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


LIMIT = 400
TRAINER = "trainer"


class Bins:
    """Busy seconds in bins of equal width.

    The length of a run is not known before it ends, so when the bins run out their width is doubled
    and neighbours are merged: there are never more than `limit`, and no busy time is lost.

    """

    def __init__(self, *, width_s: float = 1.0, limit: int = LIMIT) -> None:
        self.width_s = width_s
        self.busy_s = [0.0]
        self._limit = limit

    def add(self, begin: float, end: float) -> None:
        """Add a busy interval."""
        self.reach(end)
        width = self.width_s
        number = int(begin / width)
        while begin < end:
            until = min(end, (number + 1) * width)
            self.busy_s[number] += max(0.0, until - begin)
            begin, number = max(begin, until), number + 1

    def reach(self, end: float) -> None:
        """Extend the bins to this time."""
        while end >= self._limit * self.width_s:
            odd = [*self.busy_s[1::2], 0.0]
            self.busy_s = [a + b for a, b in zip(self.busy_s[::2], odd, strict=False)]
            self.width_s *= 2
        missing = int(end / self.width_s) + 1 - len(self.busy_s)
        self.busy_s += [0.0] * missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """The use of one pool over time.

    Example:
        Series(workers=8, shares=(0.4, 0.95, 1.0), width_s=60.0)

    """

    workers: int
    shares: tuple[float, ...]
    """Share of the workers' time in each bin that they were busy."""
    width_s: float


class PoolUse:
    """Records busy intervals of engines and, as an observer, of the trainer."""

    def __init__(self) -> None:
        self._bins: dict[str, Bins] = {}
        self._workers: dict[str, int] = {}
        self._train_since: float | None = None
        self._fleet: Fleet | None = None

    def attach(self, fleet: Fleet) -> None:
        """Watch every engine of a fleet."""
        self._fleet = fleet
        for member in fleet.members.values():
            bins = self._bins.setdefault(member.pool, Bins())
            member.engine.watch(bins.add)
            workers = self._workers.get(member.pool, 0)
            self._workers[member.pool] = workers + member.engine.workers
        self._bins[TRAINER] = Bins()
        self._workers[TRAINER] = 1

    def __call__(self, now: float, event: Event, commands: Sequence[Command]) -> None:
        """Note when training starts and ends."""
        if isinstance(event, StepFinished) and self._train_since is not None:
            self._bins[TRAINER].add(self._train_since, now)
            self._train_since = None
        for command in commands:
            if isinstance(command, Train):
                self._train_since = now

    def series(self, now: float) -> Mapping[str, Series]:
        """Return the use of each pool and of the trainer until now."""
        assert self._fleet is not None
        for member in self._fleet.members.values():
            member.engine.flush()
        if self._train_since is not None:
            self._bins[TRAINER].add(self._train_since, now)
            self._train_since = now
        return {name: self._pool_series(name, bins, now) for name, bins in self._bins.items()}

    def _pool_series(self, name: str, bins: Bins, now: float) -> Series:
        bins.reach(now)
        width, workers = bins.width_s, self._workers[name]
        spans = (min(width, now - number * width) for number in range(len(bins.busy_s)))
        shares = tuple(
            busy / (workers * span) if span > 0 else 0.0
            for busy, span in zip(bins.busy_s, spans, strict=True)
        )
        return Series(workers=workers, shares=shares, width_s=width)
