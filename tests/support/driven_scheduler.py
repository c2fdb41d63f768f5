"""A scheduler fed by hand."""

from rollart.control.rules import Batching, Rules
from rollart.control.scheduler import Scheduler, check
from rollart.events import (
    EngineSuspended,
    EngineUpdated,
    Launch,
    Published,
    RunStarted,
    StepFinished,
    TrajectoryBorn,
    TrajectoryCancelled,
    TrajectoryFailed,
    TrajectoryFinished,
)
from rollart.seeds import derive_seed
from rollart.types import EngineInfo, Failure, TrajectoryInfo

ALONE = Batching(groups_per_step=1, group_size=1)
"""One trajectory a step: trajectory and group numbers are the same."""


class Driver:
    """Feeds a scheduler by hand and checks its invariants after every event."""

    def __init__(self, *, slots=4, engines=("a",), lent=(), **rules):
        self.rules = Rules(**{"steps": 9, "batching": ALONE} | rules)
        self.scheduler = Scheduler(self.rules)
        self.now = 0.0
        infos = tuple(EngineInfo(id=name, pool="gpu", version=0) for name in engines)
        infos += tuple(EngineInfo(id=name, pool="training", version=0, lent=True) for name in lent)
        self.started = self.send(RunStarted(engines=infos, slots=slots))

    def send(self, event):
        commands = self.scheduler.handle(event, self.now)
        check(self.scheduler)
        return commands

    def born(self, id_, version=0):
        return self.send(TrajectoryBorn(id=id_, version=version))

    def finished(self, id_, *, born=0, reward=1.0, is_compared=False):
        info = TrajectoryInfo(
            id=id_,
            born=born,
            reward=reward,
            success=True,
            turns=1,
            cost=1,
            stop="terminated",
            is_compared=is_compared,
        )
        return self.send(TrajectoryFinished(info=info))

    def rival(self, id_):
        """Finish an attempt whose reward comes of comparing it with its group."""
        return self.finished(id_, reward=None, is_compared=True)

    def failed(self, id_):
        failure = Failure(kind="env_error", message="boom")
        return self.send(TrajectoryFailed(id=id_, failure=failure, cost=1))

    def cancelled(self, id_):
        return self.send(TrajectoryCancelled(id=id_, cost=1))

    def serve(self, version):
        """Finish the step to `version`, publish it and load it into the engine "a"."""
        return [
            self.send(StepFinished(version=version)),
            self.send(Published(version=version)),
            self.send(EngineSuspended(engine="a")),
            self.send(EngineUpdated(engine="a", version=version)),
        ]

    def launch(self, id_, *, group=None, member=0, attempt=0, slot=None):
        """Return the launch of a trajectory, by default the only one of the like-numbered group."""
        group = id_ if group is None else group
        return Launch(
            id=id_,
            group=group,
            member=member,
            attempt=attempt,
            task=group,
            slot=id_ if slot is None else slot,
            seed=derive_seed(self.rules.seed, group, member, 0),
        )
