from rollart.events import EngineLent, EngineRecalled, Lend, Recall, Resume, Suspend, Woke
from rollart.observe.log import Record
from rollart.observe.trace import Trace


def test_a_lend_is_a_bar_on_its_engines_track():
    trace = Trace()
    begun = len(trace.events)
    tick = Woke(at_s=0.0)
    for time_s, event, commands in (
        (1.0, tick, (Lend(engine="t", version=3), Suspend(engine="a"))),
        (2.0, EngineLent(engine="t", version=3), (Resume(engine="a"),)),
        (4.0, tick, (Recall(engine="t"),)),
        (5.0, EngineRecalled(engine="t"), ()),
    ):
        trace.add(Record(time_s=time_s, event=event, commands=commands))
    assert [(bar["name"], bar["ts"], bar["dur"]) for bar in trace.events[begun:]] == [
        ("update a", 1_000_000, 1_000_000),
        ("lend t", 1_000_000, 4_000_000),
    ]
