import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.control.autoscaling import Orders, Scaler, Scaling
from rollart.errors import ConfigError, InvariantError


def test_a_first_call_starts_an_instance_and_runs_when_it_has_started():
    scaler = Scaler(Scaling(max_instances=2))
    assert scaler.called(7, now=0.0) == Orders(start=(0,))
    assert (scaler.waiting, scaler.running, scaler.instances) == (1, 0, 1)
    assert scaler.started(0, now=0.5) == Orders(run=((7, 0),))
    assert (scaler.waiting, scaler.running, scaler.instances) == (0, 1, 1)


def test_calls_beyond_the_most_instances_wait_and_go_to_whichever_is_free_first():
    scaler = Scaler(Scaling(max_instances=2))
    starts = [scaler.called(call, now=0.0).start for call in range(4)]
    assert starts == [(0,), (1,), (), ()]
    assert scaler.started(1, now=1.0) == Orders(run=((0, 1),))
    assert scaler.answered(0, now=2.0) == Orders(run=((1, 1),))
    assert scaler.started(0, now=3.0) == Orders(run=((2, 0),))


def test_one_instance_is_filled_before_the_next_is_started():
    scaler = Scaler(Scaling(max_instances=4, concurrency=2))
    assert [scaler.called(call, now=0.0).start for call in range(4)] == [(0,), (), (1,), ()]
    assert scaler.started(0, now=1.0).run == ((0, 0), (1, 0))
    assert scaler.started(1, now=1.0).run == ((2, 1), (3, 1))
    scaler.answered(0, now=2.0)
    scaler.answered(2, now=2.0)
    scaler.answered(3, now=2.0)
    assert scaler.called(4, now=3.0) == Orders(run=((4, 0),))


def test_idle_instances_are_let_go_to_zero_the_longest_idle_first():
    scaler = Scaler(Scaling(max_instances=2, idle_s=10.0))
    for call in (0, 1):
        scaler.called(call, now=0.0)
    for instance in (0, 1):
        scaler.started(instance, now=0.0)
    assert scaler.next_tick is None
    scaler.answered(1, now=1.0)
    scaler.answered(0, now=4.0)
    assert scaler.next_tick == 11.0
    assert scaler.tick(now=10.9) == Orders()
    assert scaler.tick(now=11.0) == Orders(stop=(1,))
    assert scaler.tick(now=14.0) == Orders(stop=(0,))
    assert (scaler.instances, scaler.next_tick) == (0, None)


def test_the_instance_used_last_is_used_again_so_that_the_others_fall_idle():
    scaler = Scaler(Scaling(max_instances=2, idle_s=10.0))
    for call in (0, 1):
        scaler.called(call, now=0.0)
        scaler.started(call, now=0.0)
    scaler.answered(0, now=1.0)
    scaler.answered(1, now=2.0)
    assert scaler.called(2, now=3.0).run == ((2, 1),)


def test_the_fewest_instances_are_started_at_the_first_tick_and_kept():
    scaler = Scaler(Scaling(max_instances=3, min_instances=2, idle_s=1.0))
    assert scaler.tick(now=0.0) == Orders(start=(0, 1))
    scaler.started(0, now=0.0)
    scaler.started(1, now=0.0)
    assert scaler.next_tick is None
    assert scaler.tick(now=100.0) == Orders()


def test_an_instance_that_dies_loses_its_calls_and_is_replaced_if_others_wait():
    scaler = Scaler(Scaling(max_instances=1))
    scaler.called(0, now=0.0)
    scaler.called(1, now=0.0)
    scaler.started(0, now=0.0)
    assert scaler.died(0, now=1.0) == Orders(start=(1,), lost=(0,))
    assert scaler.started(1, now=2.0) == Orders(run=((1, 1),))
    assert scaler.died(1, now=3.0) == Orders(lost=(1,))
    assert scaler.instances == 0


def test_an_instance_that_never_started_takes_the_call_that_waited_longest_with_it():
    scaler = Scaler(Scaling(max_instances=1))
    scaler.called(0, now=0.0)
    scaler.called(1, now=0.0)
    assert scaler.died(0, now=1.0) == Orders(start=(1,), lost=(0,))
    assert scaler.died(1, now=1.0) == Orders(lost=(1,))


def test_a_call_withdrawn_while_it_waits_is_never_run():
    scaler = Scaler(Scaling(max_instances=1))
    scaler.called(0, now=0.0)
    scaler.withdrawn(0)
    assert scaler.started(0, now=1.0) == Orders()


def test_there_is_no_room_when_as_many_calls_wait_as_may():
    scaler = Scaler(Scaling(max_instances=1, queue_limit=1))
    assert scaler.has_room
    scaler.called(0, now=0.0)
    assert not scaler.has_room
    with pytest.raises(InvariantError, match="call 1 came twice, or when there was no room"):
        scaler.called(1, now=0.0)


def test_utilisation_is_the_share_of_held_time_in_which_an_instance_ran_something():
    scaler = Scaler(Scaling(max_instances=2, idle_s=1.0))
    assert scaler.utilisation(now=0.0) == 0.0
    scaler.called(0, now=1.0)
    scaler.started(0, now=2.0)
    scaler.answered(0, now=5.0)
    assert scaler.utilisation(now=6.0) == pytest.approx(3 / 5)
    scaler.tick(now=6.0)
    assert scaler.utilisation(now=1000.0) == pytest.approx(3 / 5)


def test_what_cannot_have_happened_is_a_broken_invariant():
    scaler = Scaler(Scaling())
    with pytest.raises(InvariantError, match="instance 3 started, but was not starting"):
        scaler.started(3, now=0.0)
    with pytest.raises(InvariantError, match="call 3 was answered, but did not run"):
        scaler.answered(3, now=0.0)
    scaler._starting.add(9)
    with pytest.raises(InvariantError, match="an instance is in one row"):
        scaler.check()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_instances": 0}, "scaling.max_instances = 0: must be at least 1"),
        ({"concurrency": 0}, "scaling.concurrency = 0: must be at least 1"),
        ({"queue_limit": 0}, "scaling.queue_limit = 0: must be at least 1"),
        (
            {"min_instances": 9},
            "scaling.min_instances = 9: must lie between 0 and scaling.max_instances (8)",
        ),
        ({"idle_s": -1.0}, "scaling.idle_s = -1.0: must be at least 0"),
    ],
)
def test_scaling_options_out_of_range_are_refused(options, message):
    with pytest.raises(ConfigError) as error:
        Scaling(**options)
    assert str(error.value) == message


class Place:
    """Carries orders out in whatever order is drawn, and keeps its own account."""

    def __init__(self, rule: Scaling) -> None:
        self.rule = rule
        self.scaler = Scaler(rule)
        self.now = 0.0
        self.calls = 0
        self.over: list[int] = []
        self.starting: list[int] = []
        self.ready: list[int] = []
        self.running: dict[int, int] = {}
        self.waiting: list[int] = []
        self.obey(self.scaler.tick(now=0.0))

    def obey(self, orders: Orders) -> None:
        self.scaler.check()
        for call in orders.lost:
            self.running.pop(call, None)
            if call in self.waiting:
                self.waiting.remove(call)
            self.over.append(call)
        for instance in orders.stop:
            assert instance not in self.running.values()
            self.ready.remove(instance)
        for call, instance in orders.run:
            assert instance in self.ready
            assert call == self.waiting.pop(0)
            self.running[call] = instance
        self.starting.extend(orders.start)
        loads = [list(self.running.values()).count(each) for each in self.ready]
        assert max(loads, default=0) <= self.rule.concurrency
        held = len(self.starting) + len(self.ready)
        assert self.rule.min_instances <= held <= self.rule.max_instances
        assert (held, len(self.running)) == (self.scaler.instances, self.scaler.running)
        assert not self.waiting or held

    def do(self, what: str, draw: int) -> None:
        self.now += draw % 5
        match what:
            case "call" if self.scaler.has_room:
                self.waiting.append(self.calls)
                self.calls += 1
                self.obey(self.scaler.called(self.calls - 1, now=self.now))
            case "start" if self.starting:
                instance = self.starting.pop(draw % len(self.starting))
                self.ready.append(instance)
                self.obey(self.scaler.started(instance, now=self.now))
            case "answer" if self.running:
                call = sorted(self.running)[draw % len(self.running)]
                del self.running[call]
                self.over.append(call)
                self.obey(self.scaler.answered(call, now=self.now))
            case "withdraw" if self.waiting:
                call = self.waiting.pop(draw % len(self.waiting))
                self.over.append(call)
                self.scaler.withdrawn(call)
            case "die" if self.starting + self.ready:
                held = self.starting + self.ready
                instance = held[draw % len(held)]
                (self.starting if instance in self.starting else self.ready).remove(instance)
                self.obey(self.scaler.died(instance, now=self.now))
            case _:
                self.obey(self.scaler.tick(now=self.now))


@given(
    st.builds(
        Scaling,
        max_instances=st.integers(2, 4),
        min_instances=st.integers(0, 2),
        concurrency=st.integers(1, 3),
        idle_s=st.sampled_from((0.0, 3.0)),
        queue_limit=st.integers(1, 6),
    ),
    st.lists(
        st.tuples(
            st.sampled_from(("call", "call", "start", "answer", "withdraw", "die", "tick")),
            st.integers(0, 10),
        ),
        max_size=60,
    ),
)
def test_whatever_happens_every_call_ends_once_and_idle_instances_go(rule, happenings):
    place = Place(rule)
    for what, draw in happenings:
        place.do(what, draw)
    while place.starting or place.running or place.waiting:
        place.do("start" if place.starting else "answer", 0)
    assert sorted(place.over) == list(range(place.calls))
    place.now += rule.idle_s
    place.do("tick", 0)
    assert place.scaler.instances == rule.min_instances
    assert 0.0 <= place.scaler.utilisation(now=place.now) <= 1.0
