"""Which pool completed which task's turns, by the log alone."""

from rollart.control.rules import Rules
from rollart.control.snapshot import encode_rules
from rollart.control.task_order import TaskKind, TaskMix
from rollart.events import EngineJoined, Launch, RunStarted, TrajectoryFinished, Woke
from rollart.observe.log import LogHeader, LogPart, Record
from rollart.observe.replay import turns_served
from rollart.types import EngineInfo, TrajectoryInfo

MIX = TaskMix(
    [TaskKind(name="left", domain="left"), TaskKind(name="right", domain="right")], seed=3
)
LEFT = next(index for index in range(99) if MIX.domain(index) == "left")
RIGHT = next(index for index in range(99) if MIX.domain(index) == "right")


def launch(id_, task):
    return Launch(id=id_, group=0, member=0, attempt=0, task=task, slot=0, seed=0)


def finished(id_, **served):
    info = TrajectoryInfo(
        id=id_,
        born=0,
        reward=1.0,
        success=True,
        turns=sum(served.values()),
        cost=4,
        stop="terminated",
        served=served,
    )
    return TrajectoryFinished(info=info)


def test_turns_are_counted_by_domain_and_by_the_pool_of_the_engine_that_completed_them():
    engines = tuple(EngineInfo(id=each, pool=f"pool-{each}", version=0) for each in ("a", "b"))
    steps = [
        (RunStarted(engines=engines, slots=3), (launch(0, LEFT), launch(1, RIGHT))),
        (finished(0, a=3), (launch(2, LEFT),)),
        (EngineJoined(engine=EngineInfo(id="a.1", pool="pool-b", version=0)), ()),
        (Woke(at_s=1.0), ()),
        (finished(1, b=2), ()),
        (finished(2, **{"a": 1, "a.1": 4}), ()),
    ]
    records = tuple(
        Record(time_s=float(time_s), event=event, commands=commands)
        for time_s, (event, commands) in enumerate(steps)
    )
    part = LogPart(
        header=LogHeader(seed=0, rules=encode_rules(Rules(steps=1), MIX)), records=records
    )
    assert turns_served([part]) == {
        "left": {"pool-a": 4, "pool-b": 4},
        "right": {"pool-b": 2},
    }
    assert turns_served([]) == {}
