from rollart.rewards.serverless.breaker import Breaker


def test_a_circuit_opens_after_failures_in_a_row_rests_and_is_probed_by_one_call():
    breaker = Breaker(failures=2, rest_s=5.0)
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
    breaker = Breaker(failures=1, rest_s=5.0)
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
    breaker = Breaker(failures=1, rest_s=5.0)
    breaker.failed("first", now=0.0)
    assert breaker.try_pass(now=5.0)
    breaker.abandoned()
    assert breaker.state == "open"
    assert breaker.try_pass(now=5.0)


def test_failures_apart_do_not_open_a_circuit_and_none_do_when_it_is_off():
    breaker = Breaker(failures=2, rest_s=5.0)
    for _ in range(5):
        breaker.failed("now and then", now=0.0)
        breaker.succeeded()
    assert breaker.state == "closed"
    never = Breaker(failures=0, rest_s=5.0)
    for _ in range(100):
        never.failed("always", now=0.0)
    assert never.state == "closed"
