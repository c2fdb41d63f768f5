"""How the speed of a live run is read off its log."""

from benchmarks.live_runs.timed import Timed
from rollart.events import StepFinished, Train
from rollart.observe.log import Record
from rollart.types import TrajectoryId, Version


def test_a_rate_counts_neither_the_first_steps_nor_those_left_out():
    ends_s = (10.0, 11.0, 12.0, 14.0, 16.0, 16.5, 16.6)
    group = (TrajectoryId(0), TrajectoryId(1))
    records = tuple(
        Record(
            time_s=time_s,
            event=StepFinished(version=Version(number)),
            commands=(Train(version=Version(number), groups=(group,), staleness=0),),
        )
        for number, time_s in enumerate(ends_s)
    )

    assert Timed(records=records, proof={}).trained_per_s(warm_up=3, left_out=2) == 1.0
