"""What opens a function's circuit, and what the user hears of it."""

from rollart.errors import ScoreError
from rollart.rewards.invoke.breaker import Circuits
from rollart.rewards.invoke.options import Reliability

LOST = ScoreError("mine:f: the line is broken")
RAISED = ScoreError("mine:f raised ValueError: boom", is_own=True)


class _Time:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def now(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def make() -> tuple[Circuits, _Time, list[str]]:
    time, said = _Time(), list[str]()
    reliability = Reliability(breaker_failures=2, breaker_probes=2)
    return Circuits(reliability, clock=time, warn=said.append), time, said


def test_a_function_that_raises_is_told_once_and_never_opens_its_circuit():
    circuits, _, said = make()
    for _ in range(100):
        assert circuits.try_pass("mine:f")
        circuits.failed("mine:f", RAISED)
    assert circuits.stats() == {"breaker_opens": 0, "breakers_open": 0}
    assert said == [
        "reward function mine:f failed (further failures are only counted); "
        "reason: raised ValueError: boom"
    ]


def test_opening_giving_up_and_closing_are_told_once_each_with_the_reason():
    circuits, time, said = make()
    for _ in range(2):
        assert circuits.try_pass("mine:f")
        circuits.failed("mine:f", LOST)
    assert len(said) == 2
    assert said[1] == (
        "reward function mine:f failed 2 times in a row: its calls wait, it is tried every 5 s, "
        "for at most 600 s; reason: the line is broken"
    )
    stop = circuits.stop("mine:f")
    assert stop is not None
    assert (stop.rest_s, stop.is_given_up) == (5.0, False)
    for _ in range(2):
        time.now_s += 5.0
        assert circuits.try_pass("mine:f")
        circuits.failed("mine:f", LOST)
    stops = [circuits.stop("mine:f") for _ in range(3)]
    assert {(stop.reason, stop.is_given_up) for stop in stops if stop is not None} == {
        (
            "its circuit is open since: mine:f: the line is broken (4 deliveries in a row failed)",
            True,
        )
    }
    time.now_s += 5.0
    assert circuits.try_pass("mine:f")
    circuits.succeeded("mine:f")
    assert said[2:] == [
        "reward function mine:f still fails: its calls fail until it answers; "
        "reason: the line is broken",
        "reward function mine:f answers again",
    ]
    assert circuits.stats() == {"breaker_opens": 1, "breakers_open": 0}


def test_a_circuit_that_opens_again_is_told_again():
    circuits, time, said = make()
    for _ in range(2):
        for _ in range(2):
            assert circuits.try_pass("mine:f")
            circuits.failed("mine:f", LOST)
        time.now_s += 5.0
        assert circuits.try_pass("mine:f")
        circuits.succeeded("mine:f")
    assert sum("2 times in a row" in each for each in said) == 2
