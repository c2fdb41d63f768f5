"""Control benchmark: what one event costs the scheduler, with few and with many trajectories.

A world of environments, engines and a trainer answers the real `Scheduler` in `rollart` mode
(alpha 3, groups of 8). Every slot runs an attempt all the time. Attempts are born, finish in
random order, some wait for a reward function, one in fifty fails, and each step's weights are
published and loaded. The batch grows with the slots, so that steps per trajectory stay alike.

Events are made beforehand, in chunks, and only the calls of `handle` are timed: by the wall clock,
and in seconds of this thread on a core, reported beside. The cyclic garbage collector is off: a
scheduler leaves it nothing to find (tests/control/test_garbage), and a pass would walk the other
sizes' state too. Sizes take turns in rounds, each long enough to hold a whole step of the largest;
figures are medians.

Plain: 7 rounds of 150,000 events a size. `--full`: 21 rounds. `--quick`: 3 rounds of 50,000.

- `events_per_s`: events a second with 10,000 concurrent trajectories
- `growth_1k_to_100k`: time of an event with 100,000 trajectories over that with 1,000
- `events_per_s_by_trajectories`: all sizes
- `events_per_processor_s_by_trajectories`: all sizes, by processor time
"""

import gc
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from statistics import median

from rollart.cli.bench import Effort
from rollart.control.rules import ROLLART, Batching, Rules
from rollart.control.scheduler import Scheduler
from rollart.control.staleness import Staleness
from rollart.events import (
    Cancel,
    Command,
    EngineSuspended,
    EngineUpdated,
    Event,
    Launch,
    Publish,
    Published,
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
    Update,
    Wake,
    Woke,
)
from rollart.types import EngineId, EngineInfo, Failure, TrajectoryId, TrajectoryInfo, Version

NAME = "control"
GROUP_SIZE = 8
ENGINES = 8
CRASH = Failure(kind="env_error", message="crashed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What events took to handle."""

    events: int
    busy_s: float
    wall_s: float

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            events=self.events + other.events,
            busy_s=self.busy_s + other.busy_s,
            wall_s=self.wall_s + other.wall_s,
        )


class World:
    """Answers a scheduler with `slots` environments, a chunk of events at a time."""

    def __init__(self, slots: int, *, seed: int) -> None:
        groups_per_step = max(1, slots // GROUP_SIZE)
        self.scheduler = Scheduler(
            Rules(
                steps=10**9,
                seed=seed,
                mode=ROLLART,
                batching=Batching(groups_per_step=groups_per_step, group_size=GROUP_SIZE),
                staleness=Staleness(alpha=3),
            )
        )
        self.slots = slots
        self.random = Random(seed)
        self.version = Version(0)
        self.running: list[TrajectoryId] = []
        self.born: dict[TrajectoryId, Version] = {}
        self.cancelled: set[TrajectoryId] = set()
        self.answers: list[Event] = []
        self.wakes: list[float] = []
        self.now = 0.0
        engines = tuple(
            EngineInfo(id=EngineId(f"e{number}"), pool="gpu", version=self.version)
            for number in range(ENGINES)
        )
        self.answers.append(RunStarted(engines=engines, slots=slots))

    def chunk(self) -> list[Event]:
        """Make the next events: answers to earlier commands first, then births and ends."""
        events = list(self.answers)
        self.answers.clear()
        while self.wakes and self.wakes[0] <= self.now:
            events.append(Woke(at_s=heappop(self.wakes)))
        fresh = min(self.slots // 50, len(self.running))
        return events + [self._advance() for _ in range(fresh)]

    def play(self) -> Cost:
        """Feed the scheduler a chunk, obey its commands, and return what deciding cost."""
        events = self.chunk()
        handle, now = self.scheduler.handle, self.now
        wall, busy = time.perf_counter(), time.thread_time()
        commands = [handle(event, now) for event in events]
        busy, wall = time.thread_time() - busy, time.perf_counter() - wall
        self.obey(events, commands)
        return Cost(events=len(events), busy_s=busy, wall_s=wall)

    def obey(self, events: Sequence[Event], commands: Sequence[Sequence[Command]]) -> None:
        """Carry out what the scheduler said to a chunk of events, and let time pass."""
        for event in events:
            if isinstance(event, EngineUpdated):
                self.version = event.version
        for batch in commands:
            for command in batch:
                self._obey(command)
        self.now += 0.1

    def _advance(self) -> Event:
        """Let a random attempt sample its first token, or end."""
        place = self.random.randrange(len(self.running))
        id_ = self.running[place]
        born = self.born[id_]
        if born < 0 and id_ not in self.cancelled:
            self.born[id_] = self.version
            return TrajectoryBorn(id=id_, version=self.version)
        self.running[place] = self.running[-1]
        self.running.pop()
        del self.born[id_]
        if id_ in self.cancelled:
            return TrajectoryCancelled(id=id_, cost=9)
        draw = self.random.random()
        if draw < 0.02:
            return TrajectoryFailed(id=id_, failure=CRASH, cost=9)
        return TrajectoryFinished(
            info=TrajectoryInfo(
                id=id_,
                born=born,
                reward=None if draw < 0.2 else draw,
                success=draw > 0.5,
                turns=4,
                cost=99,
                stop="terminated",
            )
        )

    def _obey(self, command: Command) -> None:
        match command:
            case Launch():
                self.running.append(command.id)
                self.born[command.id] = Version(-1)
            case Cancel():
                self.cancelled.add(command.id)
            case Score():
                self.answers.extend(TrajectoryScored(id=id_, reward=0.5) for id_ in command.ids)
            case Train():
                self.answers.append(StepFinished(version=Version(command.version + 1)))
            case Publish():
                self.answers.append(Published(version=command.version))
            case Suspend():
                self.answers.append(EngineSuspended(engine=command.engine))
            case Update():
                self.answers.append(EngineUpdated(engine=command.engine, version=command.version))
            case Wake():
                heappush(self.wakes, command.at_s)
            case _:
                pass


def measure(world: World, *, events: int) -> Cost:
    """Return what about this many events cost."""
    total = Cost(events=0, busy_s=0.0, wall_s=0.0)
    while total.events < events:
        total += world.play()
    return total


def run(*, effort: Effort) -> dict[str, object]:
    """Measure 1,000, 10,000 and 100,000 concurrent trajectories."""
    sizes = (1_000, 10_000, 100_000)
    rounds, events = {"quick": (3, 50_000), "plain": (7, 150_000), "full": (21, 150_000)}[effort]
    worlds = {size: World(size, seed=size) for size in sizes}
    costs: dict[int, list[Cost]] = {size: [] for size in sizes}
    gc.disable()
    try:
        for size, world in worlds.items():
            measure(world, events=4 * size)
        for _ in range(rounds):
            for size, world in worlds.items():
                costs[size].append(measure(world, events=events))
    finally:
        gc.enable()
    return report(costs)


def report(costs: Mapping[int, Sequence[Cost]]) -> dict[str, object]:
    """Return the figures from the costs of each size's rounds."""
    per_s = {size: median(c.events / c.wall_s for c in each) for size, each in costs.items()}
    busy = {size: median(c.events / c.busy_s for c in each) for size, each in costs.items()}
    return {
        "events_per_s": round(per_s[10_000]),
        "growth_1k_to_100k": round(per_s[1_000] / per_s[100_000], 3),
        "events_per_s_by_trajectories": {str(size): round(rate) for size, rate in per_s.items()},
        "events_per_processor_s_by_trajectories": {
            str(size): round(rate) for size, rate in busy.items()
        },
    }
