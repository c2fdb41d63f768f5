"""A run whose parts cost nothing, driven by the real controller for some seconds and counted."""

import asyncio
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.ray_runs.free_parts import FreeTrainer
from rollart.clock import SystemClock
from rollart.control.rules import Batching, Rules
from rollart.control.scheduler import Scheduler
from rollart.control.staleness import Staleness
from rollart.control.task_order import DomainOf
from rollart.events import Command, Event, Launch, TrajectoryFinished
from rollart.ports import Generator
from rollart.rollout.buffer import Buffer
from rollart.rollout.controller import Controller, Parts, Rollout
from rollart.rollout.scoring import Scored
from rollart.types import EngineId, EngineInfo, Trajectory, TrajectoryId

_GROUP = 8
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(kw_only=True)
class Counted:
    """What happened in a stretch of a run."""

    seconds: float = 0.0
    cpu_s: float = 0.0
    turns: int = 0
    finished: Counter[str] = field(default_factory=Counter[str])
    """Trajectories by task domain."""


class Pump:
    """Keeps so many trajectories running and counts what they do."""

    def __init__(self, *, slots: int, domain_of: DomainOf) -> None:
        groups = max(1, slots // _GROUP // 4)
        rules = Rules(
            steps=1_000_000,
            batching=Batching(groups_per_step=groups, group_size=_GROUP),
            staleness=Staleness(alpha=8),
        )
        self._slots = slots
        self._domain_of = domain_of
        self._tasks: dict[TrajectoryId, int] = {}
        self._now = Counted()
        scheduler = Scheduler(rules, domain_of=domain_of)
        self.controller = Controller(scheduler, clock=SystemClock(), observers=[self._see])
        self.buffer = Buffer(scheduler.is_fresh)

    async def run(
        self,
        rollout: Rollout,
        generators: Mapping[EngineId, Generator],
        *,
        infos: tuple[EngineInfo, ...],
        warm_s: float,
        measure_s: float,
    ) -> Counted:
        """Drive it; return what was counted after the warm-up."""
        parts = Parts(
            worker=rollout,
            generators=generators,
            trainer=FreeTrainer(),
            buffer=self.buffer,
            encode=lambda _groups: {},
            score=_never,
            on_train=lambda _groups: None,
            after_event=lambda _event, _tasks: None,
        )
        driving = asyncio.create_task(self.controller.run(parts, engines=infos, slots=self._slots))
        await asyncio.sleep(warm_s)
        self._now, clock, before_s = Counted(), SystemClock(), cpu_s()
        await asyncio.sleep(measure_s)
        counted = self._now
        self._now = Counted()
        counted.seconds, counted.cpu_s = clock.now(), cpu_s() - before_s
        self.controller.stop()
        await driving
        return counted

    def _see(self, _now: float, event: Event, commands: Sequence[Command]) -> None:
        if isinstance(event, TrajectoryFinished):
            self._now.turns += event.info.turns
            self._now.finished[self._domain_of(self._tasks.pop(event.info.id))] += 1
        for command in commands:
            if isinstance(command, Launch):
                self._tasks[command.id] = command.task


def cpu_s() -> float:
    """Return the processor seconds of this process and of all that descend from it."""
    parents: dict[int, int] = {}
    used: dict[int, float] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        pid = int(path.parent.name)
        parents[pid] = int(fields[1])
        used[pid] = (int(fields[11]) + int(fields[12])) / _TICKS
    return sum(seconds for pid, seconds in used.items() if _descends(pid, parents))


def _descends(pid: int, parents: Mapping[int, int]) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        pid = parents.get(pid, 0)
    return False


async def _never(_trajectories: Sequence[Trajectory]) -> Sequence[Scored]:
    raise AssertionError("every trajectory has its reward")
