"""A scripted world: answers a scheduler's commands in an order a seed chooses."""

from dataclasses import dataclass, field
from random import Random

from rollart.control.rules import Rules
from rollart.control.scheduler import Scheduler, check
from rollart.events import (
    Adapt,
    Admit,
    Cancel,
    Command,
    Drop,
    EngineJoined,
    EngineLent,
    EngineLost,
    EngineRecalled,
    EngineSuspended,
    EngineUpdated,
    Event,
    Halt,
    Launch,
    Lend,
    Publish,
    Published,
    Recall,
    Resume,
    RunStarted,
    Score,
    ScoreFailed,
    StepFinished,
    Suspend,
    Train,
    TrajectoryBorn,
    TrajectoryCancelled,
    TrajectoryFailed,
    TrajectoryFinished,
    TrajectoryScored,
    TurnCut,
    Update,
    Wake,
    Woke,
)
from rollart.types import (
    EngineId,
    EngineInfo,
    Failure,
    FailureKind,
    GroupId,
    TrajectoryId,
    TrajectoryInfo,
    Version,
)


@dataclass(kw_only=True)
class World:
    """Plays engines, environments, rewards and trainer, in random order."""

    rules: Rules
    random: Random
    slots: int = 8
    engines: int = 1
    lent: int = 0
    """Engines on training hardware."""
    failure_rate: float = 0.0
    score_failure_rate: float = 0.0
    scored_by_env: float = 1.0
    compared: float = 0.0
    """How many of the groups are scored by comparing their members."""
    hung: frozenset[int] = frozenset()
    """Slots whose environment never answers."""
    loss_rate: float = 0.0
    """How often an engine is lost; another joins some time later, with older weights maybe."""
    has_timeouts: bool = True
    """Whether a hung attempt fails after a while, instead of hanging until it is cancelled."""
    scheduler: Scheduler | None = None
    now: float = 0.0
    steps: int = 0
    log: list[tuple[float, Event, list[Command]]] = field(default_factory=list)
    ends: dict[TrajectoryId, list[str]] = field(default_factory=dict)
    trained: list[Train] = field(default_factory=list)
    born: dict[TrajectoryId, Version] = field(default_factory=dict)
    launched: dict[TrajectoryId, Launch] = field(default_factory=dict)
    disturbed: set[TrajectoryId] = field(default_factory=set)
    """Attempts that ran while an engine changed its weights."""
    scored_together: set[GroupId] = field(default_factory=set)
    halted: str | None = None

    def __post_init__(self) -> None:
        self.scheduler = self.scheduler or Scheduler(self.rules)
        start = self.scheduler.optimizer
        names = [EngineId(f"e{number}") for number in range(self.engines)]
        self.held = dict.fromkeys(names, start)
        self.away: dict[EngineId, Version] = {}
        self.late: dict[EngineId, Version] = {}
        self.joined = 0
        lent = [EngineId(f"t{number}") for number in range(self.lent)]
        self.running: dict[TrajectoryId, Launch] = {}
        self.pending: list[Event] = []
        infos = tuple(EngineInfo(id=name, pool="gpu", version=start) for name in names)
        infos += tuple(
            EngineInfo(id=name, pool="training", version=start, lent=True) for name in lent
        )
        self.send(RunStarted(engines=infos, slots=self.slots))

    def send(self, event: Event) -> list[Command]:
        if isinstance(event, Woke):
            self.now = max(self.now, event.at_s)
        commands = self.scheduler.handle(event, self.now)
        self.log.append((self.now, event, commands))
        check(self.scheduler)
        for command in commands:
            self.obey(command)
        return commands

    def obey(self, command: Command) -> None:
        match command:
            case Launch():
                assert command.id not in self.ends
                self.ends[command.id] = []
                self.launched[command.id] = command
                self.running[command.id] = command
            case Cancel():
                outruns = self.random.random() < 0.3
                if self.running[command.id].slot in self.hung or not outruns:
                    del self.running[command.id]
                    self.pending.append(TrajectoryCancelled(id=command.id, cost=1))
                    if self.random.random() < 0.3:
                        self.pending.append(TurnCut(id=command.id, cost=2))
                    self.ends[command.id].append(command.reason)
            case Score():
                self.note_score(command)
                for id_ in command.ids:
                    bad = self.random.random() < self.score_failure_rate
                    self.pending.append(
                        ScoreFailed(id=id_, message="judge down")
                        if bad
                        else TrajectoryScored(id=id_, reward=float(self.random.randint(0, 1)))
                    )
            case Drop():
                for id_ in command.ids:
                    self.ends[id_].append(command.reason)
            case Train():
                assert not self.away, "training hardware serves while it trains"
                self.trained.append(command)
                for group in command.groups:
                    for id_ in group:
                        self.ends[id_].append("trained")
                self.pending.append(StepFinished(version=Version(command.version + 1)))
            case Publish():
                self.pending.append(Published(version=command.version))
            case Suspend():
                self.pending.append(EngineSuspended(engine=command.engine))
            case Update():
                self.pending.append(EngineUpdated(engine=command.engine, version=command.version))
            case Admit():
                self.held[command.engine] = self.late.pop(command.engine)
            case Resume() | Adapt():
                pass
            case Lend():
                assert command.engine not in self.away
                if self.rules.mode.update == "idle" and self.held:
                    assert set(self.held.values()) == {command.version}
                self.away[command.engine] = command.version
                self.pending.append(EngineLent(engine=command.engine, version=command.version))
            case Recall():
                self.pending.append(EngineRecalled(engine=command.engine))
            case Wake():
                self.pending.append(Woke(at_s=command.at_s))
            case Halt():
                self.halted = command.message

    def note_score(self, command: Score) -> None:
        """See that a group is compared once, and all that is scored of it together."""
        groups = {self.launched[id_].group for id_ in command.ids}
        assert {self.is_compared(group) for group in groups} == {command.together}
        if command.together:
            assert len(groups) == 1
            assert not groups & self.scored_together
            self.scored_together |= groups

    def is_compared(self, group: GroupId) -> bool:
        return Random(group).random() < self.compared

    def step(self) -> None:
        """Let one thing happen."""
        self.now += self.random.random()
        if self.random.random() < self.loss_rate:
            self.lose()
            return
        able = [id_ for id_, launch in self.running.items() if self.is_able(launch)]
        hanging = [id_ for id_ in self.running if id_ not in able] if self.has_timeouts else []
        choices = len(self.pending) + len(able)
        if hanging and (not choices or self.random.random() < 0.05):
            self.fail(self.random.choice(hanging), kind="env_timeout")
            return
        assert choices, "nothing can happen: the run is stuck"
        pick = self.random.randrange(choices)
        if pick >= len(self.pending):
            self.advance(able[pick - len(self.pending)])
            return
        event = self.pending.pop(pick)
        if isinstance(event, EngineUpdated):
            where = self.late if event.engine in self.late else self.held
            where[event.engine] = event.version
            self.disturbed.update(self.running)
        if isinstance(event, EngineJoined):
            place = self.late if not event.engine.lent else {}
            place[event.engine.id] = event.engine.version
        if isinstance(event, EngineRecalled):
            del self.away[event.engine]
        self.send(event)

    def lose(self) -> None:
        """Lose any engine, with all its answers; another is on its way."""
        engines = [*self.held, *self.late, *self.away]
        if not engines:
            return
        lost = self.random.choice(engines)
        for place in (self.held, self.late, self.away):
            place.pop(lost, None)
        self.pending = [event for event in self.pending if getattr(event, "engine", "") != lost]
        self.joined += 1
        version = Version(self.random.randint(0, self.scheduler.weights.published))
        is_lent = lost.startswith("t")
        name = EngineId(f"{'t' if is_lent else 'j'}{99 + self.joined}")
        joining = EngineInfo(id=name, pool="gpu", version=version, lent=is_lent)
        self.pending.append(EngineJoined(engine=joining))
        self.send(EngineLost(engine=lost, message="gone"))

    def is_able(self, launch: Launch) -> bool:
        """Say whether an attempt can go on: the first turn needs an engine."""
        has_engine = launch.id in self.born or self.held or self.away
        return not self.hangs(launch) and bool(has_engine)

    def hangs(self, launch: Launch) -> bool:
        """Say whether an attempt never answers: some hang in reset, the others after a turn."""
        return launch.slot in self.hung and (launch.id % 2 == 0 or launch.id in self.born)

    def fail(self, id_: TrajectoryId, *, kind: FailureKind) -> None:
        launch = self.running.pop(id_)
        failure = Failure(kind=kind, message=f"slot {launch.slot} failed")
        self.ends[id_].append("failed")
        self.send(TrajectoryFailed(id=id_, failure=failure, cost=3))

    def advance(self, id_: TrajectoryId) -> None:
        if id_ not in self.born:
            self.born[id_] = self.random.choice([*self.held.values(), *self.away.values()])
            self.send(TrajectoryBorn(id=id_, version=self.born[id_]))
            return
        if self.random.random() < self.failure_rate:
            self.fail(id_, kind="env_error")
            return
        del self.running[id_]
        is_compared = self.is_compared(self.launched[id_].group)
        by_env = not is_compared and self.random.random() < self.scored_by_env
        reward = float(self.random.randint(0, 1)) if by_env else None
        info = TrajectoryInfo(
            id=id_,
            born=self.born[id_],
            reward=reward,
            success=bool(reward),
            turns=2,
            cost=5,
            stop="terminated",
            is_compared=is_compared,
        )
        self.send(TrajectoryFinished(info=info))

    def run(self, limit: int = 100_000) -> "World":
        """Play until the run is done."""
        while not self.scheduler.done:
            self.steps += 1
            assert self.steps < limit, "the run does not end"
            self.step()
        return self

    def play(self, events: int) -> "World":
        """Play at most this many events."""
        for _ in range(events):
            if self.scheduler.done:
                break
            self.step()
        return self
