"""What work took, from the times of its commands and answers."""

import pytest

from rollart.errors import UserError
from rollart.events import (
    Admit,
    EngineJoined,
    EngineLent,
    EngineLost,
    EngineRecalled,
    EngineUpdated,
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
    Update,
    Woke,
)
from rollart.observe.log import Record
from rollart.sim.measured import AttemptRecord, EnginePauses, Measured, RunFigures
from rollart.types import EngineInfo, Failure, TrajectoryInfo

QUIET = Woke(at_s=0.0)
ENGINES = (
    EngineInfo(id="a", pool="gpu", version=0),
    EngineInfo(id="b", pool="gpu", version=0),
    EngineInfo(id="t", pool="training", version=0, lent=True),
)
START = RunStarted(engines=ENGINES, slots=4)


def launch(id_: int, *, task: int = 0, member: int = 0) -> Launch:
    return Launch(id=id_, group=0, member=member, attempt=0, task=task, slot=0, seed=0)


def info(id_: int, *, born: int = 0, reward: float | None = None) -> TrajectoryInfo:
    return TrajectoryInfo(
        id=id_, born=born, reward=reward, success=True, turns=1, cost=5, stop="done"
    )


def measured(*records: tuple[float, object, list]) -> Measured:
    """Return what some records tell."""
    result = Measured()
    for time_s, event, commands in records:
        result.add(Record(time_s=time_s, event=event, commands=tuple(commands)))
    return result


def test_a_standstill_is_counted_as_far_as_it_lies_within_a_span():
    stood = EnginePauses()
    for start, end in ((2.0, 3.0), (5.0, 9.0)):
        stood.begin(start)
        stood.end(end)
    stood.end(20.0)
    assert [stood.within(0, at) for at in (1, 2.5, 4, 6, 10)] == [0.0, 0.5, 1.0, 2.0, 5.0]
    assert stood.within(2.5, 6.0) == 1.5


def test_an_attempts_course_is_told_from_launch_to_score():
    told = measured(
        (1.0, START, [launch(7, task=3, member=2)]),
        (2.0, TrajectoryBorn(id=7, version=0), []),
        (5.0, TrajectoryFinished(info=info(7)), [Score(ids=(7,))]),
        (6.5, TrajectoryScored(id=7, reward=0.5), []),
    )
    assert told.attempts == {
        7: AttemptRecord(
            key=(3, 2, 0),
            launched_s=1.0,
            born_s=2.0,
            ended_s=5.0,
            info=info(7),
            asked_s=5.0,
            score_s=1.5,
            reward=0.5,
        )
    }
    assert (told.started, told.last_s) == (START, 6.5)


def test_a_failed_attempt_is_told_from_a_cancelled_one():
    failure = Failure(kind="env_error", message="gone")
    told = measured(
        (0.0, START, [launch(1), launch(2)]),
        (1.0, TrajectoryFailed(id=1, failure=failure, cost=0), []),
        (2.0, TrajectoryCancelled(id=2, cost=0), []),
    )
    assert [(c.ended_s, c.has_failed) for c in told.attempts.values()] == [
        (1.0, True),
        (2.0, False),
    ]


def test_work_takes_from_its_command_to_its_answer():
    told = measured(
        (0.0, START, [Train(version=0, groups=((1,),), staleness=0)]),
        (4.0, StepFinished(version=1), [Publish(version=1), Lend(engine="t", version=0)]),
        (6.0, EngineLent(engine="t", version=0), []),
        (7.0, Published(version=1), [Suspend(engine="a"), Recall(engine="t")]),
        (7.5, EngineUpdated(engine="a", version=1), [Resume(engine="a")]),
        (8.0, EngineRecalled(engine="t"), []),
    )
    assert (told.train_s, told.publish_s) == ({0: 4.0}, {1: 3.0})
    assert (told.update_s, told.lend_s) == ({(1, "a"): 0.5}, [2.0, 1.0])


def test_the_mean_of_the_engines_standstills_is_not_an_attempts_own_time():
    told = measured(
        (0.0, START, []),
        (1.0, QUIET, [Suspend(engine="a"), Suspend(engine="b")]),
        (2.0, QUIET, [Resume(engine="a")]),
        (4.0, QUIET, [Resume(engine="b")]),
    )
    assert told.own_s(0.0, 10.0) == 10.0 - (1.0 + 3.0) / 2
    assert Measured().own_s(0.0, 10.0) == 10.0


def test_an_answer_to_nothing_is_refused():
    with pytest.raises(UserError, match="attempt 9, which it never launched"):
        measured((0.0, TrajectoryBorn(id=9, version=0), []))
    with pytest.raises(UserError, match="which it never commanded"):
        measured((0.0, Published(version=1), []))


def test_runs_are_compared_by_their_steps_and_the_age_of_what_they_trained():
    figures = RunFigures()
    figures(0.0, TrajectoryFinished(info=info(1, born=0)), [])
    figures(1.0, TrajectoryFinished(info=info(2, born=1)), [])
    figures(2.0, StepFinished(version=1), [Train(version=1, groups=((1,), (2,)), staleness=1)])
    figures(5.0, StepFinished(version=2), [])
    figures(9.0, StepFinished(version=3), [])
    assert figures.summary() == {
        "step_s": 3.5,
        "staleness_mean": 0.5,
        "staleness_max": 1,
        "staleness": {"0": 0.5, "1": 0.5},
    }


def test_engines_that_come_and_go_are_one_after_the_other_in_the_same_place():
    joined = EngineJoined(engine=EngineInfo(id="a.1", pool="gpu", version=0))
    told = measured(
        (0.0, START, []),
        (1.0, QUIET, [Suspend(engine="a")]),
        (3.0, EngineLost(engine="a", message="gone"), []),
        (5.0, joined, [Update(engine="a.1", version=1)]),
        (6.0, EngineUpdated(engine="a.1", version=1), [Admit(engine="a.1")]),
        (7.0, QUIET, [Suspend(engine="a.1")]),
        (8.0, EngineUpdated(engine="a.1", version=2), [Resume(engine="a.1")]),
    )
    assert told.own_s(0.0, 10.0) == 10.0 - (2.0 + 1.0) / 2
    assert told.update_s == {(2, "a.1"): 1.0}
