"""The heap of what will happen."""

from hypothesis import given
from hypothesis import strategies as st

from rollart.sim.loop import Loop


def test_actions_happen_in_order_of_time_then_of_asking():
    loop, seen = Loop(), []
    for name, seconds in (("c", 2.0), ("a", 1.0), ("b", 1.0)):
        loop.after(seconds, lambda name=name: seen.append((name, loop.now)))
    while loop.step():
        pass
    assert seen == [("a", 1.0), ("b", 1.0), ("c", 2.0)]
    assert (loop.now, loop.count) == (2.0, 3)


def test_an_action_may_ask_for_others_at_once():
    loop, seen = Loop(), []

    def first() -> None:
        seen.append("first")
        loop.after(0.0, lambda: seen.append("then"))

    loop.after(1.0, first)
    loop.after(1.0, lambda: seen.append("second"))
    while loop.step():
        pass
    assert seen == ["first", "second", "then"]


def test_a_cancelled_action_does_not_happen_and_takes_no_time():
    loop, seen = Loop(), []
    timer = loop.after(5.0, lambda: seen.append("late"))
    loop.after(1.0, timer.cancel)
    while loop.step():
        pass
    assert (seen, loop.now, loop.count) == ([], 1.0, 1)


def test_a_timer_cancelled_after_it_fired_changes_nothing():
    loop, seen = Loop(), []
    timer = loop.after(1.0, lambda: seen.append("once"))
    assert loop.step()
    timer.cancel()
    assert not loop.step()
    assert seen == ["once"]


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(0, 3), st.booleans()), max_size=60))
def test_any_mixture_is_taken_in_order(asked):
    loop = Loop()
    expected: list[tuple[float, int]] = []
    seen: list[tuple[float, int]] = []

    def ask(index: int) -> None:
        seconds, _, is_cancelled = asked[index]
        timer = loop.after(seconds, lambda: take(index))
        if is_cancelled:
            timer.cancel()
        else:
            expected.append((loop.now + seconds, index))

    def take(index: int) -> None:
        seen.append((loop.now, index))
        for _ in range(asked[index][1]):
            if coming:
                ask(coming.pop(0))

    coming = list(range(len(asked)))
    while coming:
        ask(coming.pop(0))
        while loop.step():
            pass
    assert sorted(seen) == sorted(expected)
    assert [at for at, _ in seen] == sorted(at for at, _ in seen)
    assert loop.count == len(expected)
