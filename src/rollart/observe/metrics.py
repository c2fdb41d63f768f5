"""Metrics: turn events and commands into one row per optimizer step and the current status.

A row is flat: names and numbers. Counts cover the time since the previous step. Rates cover the
last few steps, because steps may end in pairs. With several tasks a row also has figures for each.
No clock is read, so the same log gives the same rows, live and afterwards.

`ScoreMetrics` does the same for reward functions: a latency runs from the `Score` command to the
answer, and the parts of a reward are kept until its trajectory leaves the buffer.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rollart.events import (
    Adapt,
    Cancel,
    Command,
    Drop,
    EngineJoined,
    EngineLost,
    EngineUpdated,
    Event,
    Launch,
    Published,
    Resume,
    RunStarted,
    Score,
    ScoreFailed,
    StepFinished,
    Suspend,
    Train,
    TrajectoryCancelled,
    TrajectoryFailed,
    TrajectoryFinished,
    TrajectoryScored,
)
from rollart.observe.ledger import Ledger
from rollart.observe.selection import Selection
from rollart.types import EngineId, Trajectory, TrajectoryId, TrajectoryInfo, Version

_NOTHING: Mapping[str, float] = {}


class ScoreMetrics:
    """Counts scores and their latencies since the last row."""

    def __init__(self) -> None:
        self.failures: Counter[str] = Counter()
        """Why scores failed, since the start."""
        self._asked: dict[TrajectoryId, float] = {}
        self._parts: dict[TrajectoryId, Mapping[str, float]] = {}
        self._latencies: list[float] = []
        self._counts: Counter[str] = Counter()
        self._is_used = False

    def add(self, now: float, event: Event, commands: Sequence[Command]) -> None:
        """Add one record."""
        match event:
            case TrajectoryScored(id=id_, parts=parts):
                self._answer(now, id_, "scored")
                if parts:
                    self._parts[id_] = parts
            case ScoreFailed(id=id_, message=message):
                self._answer(now, id_, "failed")
                self.failures[message] += 1
            case _:
                pass
        for command in commands:
            match command:
                case Score(ids=ids):
                    self._is_used = True
                    self._asked.update(dict.fromkeys(ids, now))
                case Drop(ids=ids):
                    self.take(ids)
                case _:
                    pass

    def take(self, ids: Iterable[TrajectoryId]) -> dict[TrajectoryId, Mapping[str, float]]:
        """Remove and return the reward parts of trajectories that leave the buffer."""
        return {id_: self._parts.pop(id_, _NOTHING) for id_ in ids}

    def row(self, batch: Iterable[Mapping[str, float]]) -> dict[str, float]:
        """Return the figures since the last row and the mean of each part over a batch."""
        if not self._is_used:
            return {}
        ordered = sorted(self._latencies)
        row: dict[str, float] = {
            "reward/scored": self._counts["scored"],
            "reward/failed": self._counts["failed"],
            "reward/in_flight": len(self._asked),
            "reward/latency_p50_s": _percentile(ordered, 0.50),
            "reward/latency_p99_s": _percentile(ordered, 0.99),
        }
        values: dict[str, list[float]] = {}
        for parts in batch:
            for name, value in parts.items():
                values.setdefault(name, []).append(value)
        row |= {f"reward/part/{name}": sum(each) / len(each) for name, each in values.items()}
        self._latencies, self._counts = [], Counter()
        return row

    def _answer(self, now: float, id_: TrajectoryId, how: str) -> None:
        self._counts[how] += 1
        self._latencies.append(now - self._asked.pop(id_, now))


def _percentile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


Row = dict[str, float]
TaskName = Callable[[int], str]
"""Returns the name of the task at an index of the stream."""
_RATED_STEPS = 8
"""Number of steps that rates are averaged over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The state of a run at one moment.

    Example:
        >>> Status(
        ...     step=12, running=60, slots=64, waiting=8,
        ...     engines=2, suspended=0, training_since_s=None,
        ... )

    """

    step: int
    running: int
    """Attempts in progress."""
    slots: int
    waiting: int
    """Finished attempts in the buffer."""
    engines: int
    """Engines that always serve."""
    suspended: int
    """Engines that do not generate because their weights are being updated."""
    training_since_s: float | None
    """When the current step began; None while the trainer waits."""


@dataclass(slots=True)
class _Window:
    """Counts since the last step."""

    start_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter[str])
    busy_slot_s: float = 0.0
    suspended_s: float = 0.0
    weights: list[Mapping[str, float]] = field(default_factory=list[Mapping[str, float]])
    """Times of each weight transfer: pushes and engine updates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Training:
    """The current step."""

    start_s: float
    version: Version
    groups: int
    batch: tuple[tuple[TrajectoryInfo, float], ...]
    """The trajectories, with their rewards."""
    parts: Mapping[TrajectoryId, Mapping[str, float]]
    """Named parts of each reward."""
    tasks: Mapping[TrajectoryId, str]
    """Task name of each trajectory, if there are several tasks."""


class Metrics:
    """Turns a run's events into rows."""

    def __init__(self, task_name: TaskName | None = None) -> None:
        """Report tasks by `task_name`, if there are several."""
        self._task_name = task_name
        self._tasks: dict[TrajectoryId, str] = {}
        self._rated: deque[tuple[float, int, float]] = deque(maxlen=_RATED_STEPS)
        """Start, trajectories and tokens of each of the last steps."""
        self.ledger = Ledger()
        self.scores = ScoreMetrics()
        self.selection = Selection(task_name)
        self._infos: dict[TrajectoryId, TrajectoryInfo] = {}
        self._rewards: dict[TrajectoryId, float] = {}
        self._running = 0
        self._slots = 0
        self._engines: set[EngineId] = set()
        """Engines that always serve."""
        self._suspended: dict[EngineId, float] = {}
        self._training: _Training | None = None
        self._window = _Window()
        self._now = 0.0
        self._step = 0
        self._sampled = 0
        self._wasted: Counter[str] = Counter()
        self._levels: Row = {}

    def take_over(
        self, trajectories: Iterable[Trajectory], rewards: Mapping[TrajectoryId, float]
    ) -> None:
        """Add the trajectories in the buffer of a resumed run."""
        for each in trajectories:
            self._infos[each.id] = TrajectoryInfo(
                id=each.id,
                born=each.born,
                reward=rewards[each.id],
                success=each.success,
                turns=len(each.payload),
                cost=each.cost,
                stop=each.stop,
            )
            self._rewards[each.id] = rewards[each.id]
            self._tasks[each.id] = each.task.env
            name = "" if self._task_name is None else each.task.env
            self.selection.take_over(self._infos[each.id], name)
            self.ledger.take_over(each.id, each.cost)
        self._sampled = self.ledger.sampled

    def add(self, now: float, event: Event, commands: Sequence[Command]) -> Row | None:
        """Add one record; return a row if it ends a step."""
        self._window.busy_slot_s += self._running * (now - self._now)
        self._now = now
        self.ledger.note(event)
        self.scores.add(now, event, commands)
        self.selection.note(event)
        row = self._note_event(now, event)
        # After the row: commands that follow from the end of a step belong to the next step.
        self.ledger.book(commands)
        self.selection.book(commands)
        for command in commands:
            self._note_command(now, command)
        return row

    def parts(self, id_: TrajectoryId) -> Mapping[str, float]:
        """Return the reward parts of a trajectory in the current step."""
        return {} if self._training is None else self._training.parts.get(id_, {})

    @property
    def status(self) -> Status:
        """The run's state after the last record."""
        return Status(
            step=self._step,
            running=self._running,
            slots=self._slots,
            waiting=self.ledger.waiting,
            engines=len(self._engines),
            suspended=len(self._suspended),
            training_since_s=None if self._training is None else self._training.start_s,
        )

    @property
    def serving(self) -> frozenset[EngineId]:
        """Engines that always serve and are not updating their weights."""
        return frozenset(self._engines.difference(self._suspended))

    def _note_event(self, now: float, event: Event) -> Row | None:
        match event:
            case RunStarted(engines=engines, slots=slots):
                self._engines = {engine.id for engine in engines if not engine.lent}
                self._slots = slots
                self._window.start_s = now
            case EngineJoined(engine=engine):
                self._engines |= set() if engine.lent else {engine.id}
            case EngineLost(engine=lost):
                self._engines.discard(lost)
                self._suspended.pop(lost, None)
            case TrajectoryFinished(info=info):
                self._end_attempt("finished")
                self._infos[info.id] = info
                if info.reward is not None:
                    self._rewards[info.id] = info.reward
            case TrajectoryFailed(id=id_):
                self._end_attempt("failed")
                self._tasks.pop(id_, None)
            case TrajectoryCancelled(id=id_):
                self._end_attempt("cancelled")
                self._tasks.pop(id_, None)
            case TrajectoryScored(id=id_, reward=reward):
                self._rewards[id_] = reward
            case Published(metrics=took) | EngineUpdated(metrics=took):
                self._window.weights.append(took)
            case StepFinished() if self._training is not None:
                return self._end_step(now, event, self._training)
            case _:
                pass
        return None

    def _note_command(self, now: float, command: Command) -> None:
        match command:
            case Launch(id=id_, task=task):
                self._running += 1
                self._window.counts["launched"] += 1
                if self._task_name is not None:
                    self._tasks[id_] = self._task_name(task)
            case Drop(ids=ids):
                self._window.counts["dropped"] += len(ids)
                for each in ids:
                    self._forget(each)
                    self._tasks.pop(each, None)
            case Train(version=version, groups=groups):
                ids = [each for group in groups for each in group]
                taken = (self._forget(each) for each in ids)
                self._training = _Training(
                    start_s=now,
                    version=version,
                    groups=len(groups),
                    batch=tuple(pair for pair in taken if pair is not None),
                    parts=self.scores.take(ids),
                    tasks={each: self._tasks.pop(each, "") for each in ids},
                )
            case Suspend(engine=engine):
                self._suspended[engine] = now
            case Resume(engine=engine):
                self._window.suspended_s += now - self._suspended.pop(engine, now)
            case Adapt(alpha=alpha, extra_groups=extra_groups):
                self._levels = {"adaptive/alpha": alpha, "adaptive/extra_groups": extra_groups}
            case Cancel() | _:
                pass

    def _end_attempt(self, how: str) -> None:
        self._running -= 1
        self._window.counts[how] += 1

    def _forget(self, id_: TrajectoryId) -> tuple[TrajectoryInfo, float] | None:
        info = self._infos.pop(id_, None)
        reward = self._rewards.pop(id_, 0.0)
        return None if info is None else (info, reward)

    def _end_step(self, now: float, event: StepFinished, training: _Training) -> Row:
        window, seconds = self._window, now - self._window.start_s
        self._step = event.version
        row: Row = {
            "step": event.version,
            "time_s": now,
            **_batch_row(training),
            **(tokens := self._token_row()),
            **self._rates(now, training, tokens["tokens"]),
            "step_s": seconds,
            "train_s": now - training.start_s,
            "trainer_wait_s": training.start_s - window.start_s,
            "engines_suspended_s": _per(window.suspended_s, len(self._engines)),
            "slots_busy": _per(window.busy_slot_s, self._slots * seconds),
        }
        for name in ("launched", "finished", "failed", "cancelled", "dropped"):
            row[name] = window.counts[name]
        row.update(_tasks_row(training) if self._task_name is not None else {})
        row.update(_weights_row(window.weights))
        row.update(self.scores.row(training.parts.values()))
        row.update(self.selection.row())
        row.update(self._levels)
        row.update({f"trainer/{name}": value for name, value in event.metrics.items()})
        self._training = None
        self._window = _Window(start_s=now)
        return row

    def _rates(self, now: float, training: _Training, tokens: float) -> Row:
        """Return trajectories and tokens per second over the last steps."""
        self._rated.append((self._window.start_s, len(training.batch), tokens))
        seconds = now - self._rated[0][0]
        return {
            "trajectories_per_s": _per(sum(each[1] for each in self._rated), seconds),
            "tokens_per_s": _per(sum(each[2] for each in self._rated), seconds),
        }

    def _token_row(self) -> Row:
        """Return the tokens sampled since the last step, and those wasted by cause."""
        tokens = self.ledger.sampled - self._sampled
        wasted = self.ledger.wasted - self._wasted
        self._sampled, self._wasted = self.ledger.sampled, Counter(self.ledger.wasted)
        row: Row = {"tokens": tokens, "wasted_tokens": wasted.total()}
        row.update({f"wasted/{cause}": count for cause, count in sorted(wasted.items())})
        return row


def _tasks_row(training: _Training) -> Row:
    """Return the size, reward and success of each task's trajectories."""
    row: Row = {}
    for name in sorted(set(training.tasks.values())):
        mine = [each for each in training.batch if training.tasks[each[0].id] == name]
        row[f"tasks/{name}/trajectories"] = len(mine)
        row[f"tasks/{name}/reward_mean"] = _per(sum(reward for _, reward in mine), len(mine))
        row[f"tasks/{name}/success_rate"] = _per(sum(i.success for i, _ in mine), len(mine))
    return row


def _weights_row(taken: Sequence[Mapping[str, float]]) -> Row:
    """Return the mean times of weight pushes and engine updates since the last step."""
    row: Row = {}
    for name in ("push_s", "pull_s", "exposed_s", "load_s"):
        values = [each[name] for each in taken if name in each]
        if values:
            row[f"weights/{name}"] = _per(sum(values), len(values))
    return row


def _batch_row(training: _Training) -> Row:
    """Return the figures of the trained batch."""
    infos = [info for info, _ in training.batch]
    rewards = [reward for _, reward in training.batch]
    ages = [training.version - info.born for info in infos]
    count = len(infos)
    return {
        "trajectories": count,
        "groups": training.groups,
        "reward_mean": _per(sum(rewards), count),
        "success_rate": _per(sum(info.success for info in infos), count),
        "turns_mean": _per(sum(info.turns for info in infos), count),
        "trained_tokens": sum(info.cost for info in infos),
        "staleness_mean": _per(sum(ages), count),
        "staleness_max": max(ages, default=0),
    }


def _per(amount: float, count: float) -> float:
    return amount / count if count else 0.0
