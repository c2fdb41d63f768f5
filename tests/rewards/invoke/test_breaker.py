from rollart.rewards.invoke.breaker import Breaker


def make(failures: int) -> Breaker:
    return Breaker(failures=failures, rest_s=5.0, probes=2, patience_s=100.0)


def probe(breaker: Breaker, now: float) -> None:
    assert breaker.try_pass(now=now)
    breaker.failed("probe", now=now)


def test_a_circuit_opens_after_failures_in_a_row_rests_and_is_probed_by_one_call():
    breaker = make(2)
    assert breaker.try_pass(now=0.0)
    breaker.failed("first", now=0.0)
    assert breaker.state == "closed"
    assert breaker.rest_s(now=0.0) == 0.0
    breaker.failed("second", now=1.0)
    assert (breaker.state, breaker.opens, breaker.reason) == ("open", 1, "second")
    assert not breaker.try_pass(now=5.9)
    assert breaker.rest_s(now=2.0) == 4.0
    assert breaker.try_pass(now=6.0)
    assert breaker.state == "half-open"
    assert not breaker.try_pass(now=6.0)
    assert breaker.rest_s(now=7.0) == 5.0


def test_a_probe_that_fails_opens_the_circuit_again_and_one_that_succeeds_closes_it():
    breaker = make(1)
    breaker.failed("first", now=0.0)
    assert breaker.try_pass(now=5.0)
    breaker.failed("probe", now=5.0)
    assert (breaker.state, breaker.opens) == ("open", 1)
    assert not breaker.try_pass(now=9.0)
    assert breaker.try_pass(now=10.0)
    breaker.succeeded()
    assert breaker.state == "closed"
    assert breaker.try_pass(now=10.0)


def test_a_probe_given_up_leaves_room_for_another():
    breaker = make(1)
    breaker.failed("first", now=0.0)
    assert breaker.try_pass(now=5.0)
    breaker.abandoned()
    assert breaker.state == "open"
    assert breaker.try_pass(now=5.0)


def test_failures_apart_do_not_open_a_circuit_and_none_do_when_it_is_off():
    breaker = make(2)
    for _ in range(5):
        breaker.failed("now and then", now=0.0)
        breaker.succeeded()
    assert breaker.state == "closed"
    never = make(0)
    for _ in range(100):
        never.failed("always", now=0.0)
    assert never.state == "closed"


def test_a_function_that_never_answered_is_given_up_after_a_few_probes():
    breaker = make(1)
    breaker.failed("first", now=0.0)
    probe(breaker, 5.0)
    assert not breaker.is_given_up(now=5.0)
    probe(breaker, 10.0)
    assert breaker.is_given_up(now=10.0)
    assert breaker.try_pass(now=15.0)
    breaker.succeeded()
    assert not breaker.is_given_up(now=15.0)


def test_an_outage_of_a_function_that_answered_is_outlived_for_as_long_as_a_call_may_take():
    breaker = make(1)
    breaker.succeeded()
    breaker.failed("first", now=1.0)
    for now in range(6, 100, 5):
        probe(breaker, float(now))
    assert not breaker.is_given_up(now=100.9)
    assert breaker.is_given_up(now=101.0)
