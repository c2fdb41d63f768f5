"""The end of an environment worker, as the scheduler sees it."""

from rollart.control.rules import Batching, Retry, Rules
from rollart.control.scheduler import Scheduler
from rollart.events import Halt, Launch, RunStarted, TrajectoryFailed
from rollart.types import EngineInfo, Failure


def test_a_worker_that_takes_many_attempts_along_does_not_end_the_run():
    rules = Rules(
        steps=9,
        batching=Batching(groups_per_step=2, group_size=4),
        retry=Retry(give_up_after=2, max_attempts=99, spares=True),
    )
    scheduler = Scheduler(rules)
    engine = EngineInfo(id="e", pool="local", version=0)
    commands = scheduler.handle(RunStarted(engines=(engine,), slots=8), 0.0)
    first = [each.id for each in commands if isinstance(each, Launch)]

    def fail(ids, kind):
        failure = Failure(kind=kind, message="gone")
        events = [TrajectoryFailed(id=id_, failure=failure, cost=0) for id_ in ids]
        return [each for event in events for each in scheduler.handle(event, 1.0)]

    again = fail(first, "worker")
    relaunched = [each.id for each in again if isinstance(each, Launch)]
    assert (len(first), len(relaunched)) == (8, 8)
    assert Halt not in map(type, again)
    assert Halt in map(type, fail(relaunched[:2], "env_error"))
