"""Measured: how long everything took in a run, read from its event log.

The log has the time of each command and of the event that answers it; the difference is how long
the work took. Pauses in which an engine changed weights are subtracted from attempts, because a
simulated run adds pauses of its own. The log does not say which engine served an attempt, so with
several engines the mean of their pauses is subtracted. The cost of engines that joined or were lost
stays in the attempts' times.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from rollart.errors import UserError
from rollart.events import (
    Command,
    EngineJoined,
    EngineLent,
    EngineLost,
    EngineRecalled,
    EngineUpdated,
    Event,
    Launch,
    Lend,
    Publish,
    Published,
    Recall,
    Resume,
    RunStarted,
    Score,
    StepFinished,
    Suspend,
    Train,
    TrajectoryBorn,
    TrajectoryCancelled,
    TrajectoryFailed,
    TrajectoryFinished,
    TrajectoryScored,
)
from rollart.observe.log import Record
from rollart.types import EngineId, TrajectoryId, TrajectoryInfo, Version

AttemptKey = tuple[int, int, int]
"""An attempt by its task, its member number in the group and how many tries came before."""


@dataclass(slots=True, kw_only=True)
class AttemptRecord:
    """One attempt as it is recorded in the log.

    Example:
        AttemptRecord(key=(12, 0, 0), launched_s=4.0, born_s=5.5, ended_s=9.0)

    """

    key: AttemptKey
    launched_s: float
    born_s: float | None = None
    ended_s: float | None = None
    info: TrajectoryInfo | None = None
    """Its result, if it finished."""
    has_failed: bool = False
    asked_s: float | None = None
    """When its score was requested."""
    score_s: float | None = None
    reward: float = 0.0


class EnginePauses:
    """When an engine was paused, and for how much of any span."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._starts: list[float] = []
        self._ends: list[float] = []
        self._before: list[float] = [0.0]
        """Total paused time before each pause."""

    def begin(self, now: float) -> None:
        """Note that the engine pauses."""
        self._since = now

    def end(self, now: float) -> None:
        """Note that the engine resumes."""
        if self._since is not None:
            self._starts.append(self._since)
            self._ends.append(now)
            self._before.append(self._before[-1] + now - self._since)
            self._since = None

    def within(self, start: float, end: float) -> float:
        """Return how long the engine was paused within a span."""
        return self._paused_s(end) - self._paused_s(start)

    def _paused_s(self, at: float) -> float:
        ended = bisect_left(self._ends, at)
        running = ended < len(self._starts) and self._starts[ended] < at
        return self._before[ended] + (at - self._starts[ended] if running else 0.0)


@dataclass(slots=True)
class Measured:
    """What a run's log says its work took; call `add` with its records in order.

    Example:
        measured = Measured()
        for record in part.records:
            measured.add(record)
        measured.train_s[Version(3)]  # seconds of the step from version 3 to 4

    """

    started: RunStarted | None = None
    last_s: float = 0.0
    """When the log ends."""
    attempts: dict[TrajectoryId, AttemptRecord] = field(
        default_factory=dict[TrajectoryId, AttemptRecord]
    )
    train_s: dict[Version, float] = field(default_factory=dict[Version, float])
    publish_s: dict[Version, float] = field(default_factory=dict[Version, float])
    update_s: dict[tuple[Version, EngineId], float] = field(
        default_factory=dict[tuple[Version, EngineId], float]
    )
    """From the Suspend command until the weights were loaded."""
    lend_s: list[float] = field(default_factory=list[float])
    """Duration of each lend or recall."""
    _pauses: dict[EngineId, EnginePauses] = field(default_factory=dict[EngineId, EnginePauses])
    _engines: int = 0
    """How many engines served at the start; later ones replace engines that were lost."""
    _late: set[EngineId] = field(default_factory=set[EngineId])
    """Engines that joined later: they may load weights before they serve."""
    _asked: dict[object, float] = field(default_factory=dict[object, float])
    """When each unanswered command was issued."""

    def add(self, record: Record) -> None:
        """Add one record; records must come in the order of the log."""
        self.last_s = record.time_s
        self._note_event(record.time_s, record.event)
        for command in record.commands:
            self._note_command(record.time_s, command)

    def own_s(self, start: float, end: float) -> float:
        """Return the part of a span that was not spent waiting for engines to change weights."""
        if not self._engines:
            return end - start
        stood_s = sum(each.within(start, end) for each in self._pauses.values())
        return max(0.0, end - start - stood_s / self._engines)

    def _note_event(self, now: float, event: Event) -> None:
        match event:
            case RunStarted():
                self.started = event
                serving = [engine.id for engine in event.engines if not engine.lent]
                self._pauses = {engine: EnginePauses() for engine in serving}
                self._engines = len(serving)
            case TrajectoryBorn():
                self._attempt(event.id).born_s = now
            case TrajectoryFinished(info=info):
                attempt = self._attempt(info.id)
                attempt.ended_s, attempt.info = now, info
                attempt.reward = info.reward or 0.0
            case TrajectoryFailed() | TrajectoryCancelled():
                attempt = self._attempt(event.id)
                attempt.ended_s = now
                attempt.has_failed = isinstance(event, TrajectoryFailed)
            case TrajectoryScored():
                attempt = self._attempt(event.id)
                attempt.reward = event.reward
                attempt.score_s = None if attempt.asked_s is None else now - attempt.asked_s
            case StepFinished():
                version = Version(event.version - 1)
                self.train_s[version] = self._took(("train", version), now)
            case Published():
                self.publish_s[event.version] = self._took(("publish", event.version), now)
            case _:
                self._note_engine(now, event)

    def _note_engine(self, now: float, event: Event) -> None:
        match event:
            case EngineJoined(engine=engine):
                self._late.add(engine.id)
                if not engine.lent:
                    self._pauses[engine.id] = EnginePauses()
            case EngineLost():
                self._asked.pop(("update", event.engine), None)
                if event.engine in self._pauses:
                    self._pauses[event.engine].end(now)
            case EngineUpdated():
                what = ("update", event.engine)
                if what in self._asked or event.engine not in self._late:
                    self.update_s[event.version, event.engine] = self._took(what, now)
            case EngineLent() | EngineRecalled():
                self.lend_s.append(self._took(("lend", event.engine), now))
            case _:
                pass

    def _note_command(self, now: float, command: Command) -> None:
        match command:
            case Launch():
                key = (command.task, command.member, command.attempt)
                self.attempts[command.id] = AttemptRecord(key=key, launched_s=now)
            case Score():
                for id_ in command.ids:
                    self._attempt(id_).asked_s = now
            case Train():
                self._asked["train", command.version] = now
            case Publish():
                self._asked["publish", command.version] = now
            case Suspend():
                self._asked["update", command.engine] = now
                self._pauses[command.engine].begin(now)
            case Resume():
                self._pauses[command.engine].end(now)
            case Lend() | Recall():
                self._asked["lend", command.engine] = now
            case _:
                pass

    def _attempt(self, id_: TrajectoryId) -> AttemptRecord:
        if id_ not in self.attempts:
            raise UserError(f"the log reports attempt {id_}, which it never launched")
        return self.attempts[id_]

    def _took(self, what: object, now: float) -> float:
        if what not in self._asked:
            raise UserError(f"the log has a result of {what}, which it never commanded")
        return now - self._asked.pop(what)


@dataclass(slots=True)
class RunFigures:
    """The figures by which runs are compared; an observer of a live log or of a simulation.

    Example:
        figures = RunFigures()
        Simulator(world, observers=[figures]).run()
        figures.summary()["step_s"]

    """

    step_ends: list[float] = field(default_factory=list[float])
    ages: dict[int, int] = field(default_factory=dict[int, int])
    """Trained trajectories by their staleness."""
    _born: dict[TrajectoryId, Version] = field(default_factory=dict[TrajectoryId, Version])

    def __call__(self, now: float, event: Event, commands: Sequence[Command]) -> None:
        """Note one event and its commands."""
        if isinstance(event, TrajectoryFinished):
            self._born[event.info.id] = event.info.born
        elif isinstance(event, StepFinished):
            self.step_ends.append(now)
        for command in commands:
            if isinstance(command, Train):
                for id_ in (id_ for group in command.groups for id_ in group):
                    age = command.version - self._born[id_]
                    self.ages[age] = self.ages.get(age, 0) + 1

    def summary(self) -> Mapping[str, Any]:
        """Return the mean step time, without the first step, and the staleness."""
        spans = [end - start for start, end in pairwise(self.step_ends)]
        count = sum(self.ages.values())
        return {
            "step_s": sum(spans) / len(spans),
            "staleness_mean": sum(age * number for age, number in self.ages.items()) / count,
            "staleness_max": max(self.ages),
            "staleness": {str(age): self.ages[age] / count for age in sorted(self.ages)},
        }
