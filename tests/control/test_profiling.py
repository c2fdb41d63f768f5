from random import Random

import pytest

from rollart.control.profiling import Answered, Profiler

FAST_READER, FAST_WRITER = (1e-4, 0.02, 2e-3), (5e-4, 0.01, 1e-3)


def answer(profiler, *, domain, pool, new, sampled, costs, beside=0.0):
    """Tell of a request that took as long as the costs say."""
    new_s, sampled_s, beside_s = costs
    took_s = new * new_s + sampled * (sampled_s + beside * beside_s)
    profiler.note(
        Answered(
            domain=domain,
            pool=pool,
            new_tokens=new,
            sampled_tokens=sampled,
            took_s=took_s,
            beside=beside,
        )
    )


def trained(*, requests=400):
    """Return a profiler that knows readers on the first pool and writers on the second."""
    profiler, random = Profiler(), Random(0)
    for _ in range(requests):
        beside = random.uniform(0, 8)
        for pool, costs in (("reader", FAST_READER), ("writer", FAST_WRITER)):
            for domain, new, sampled in (("code", 3000, 100), ("math", 200, 900)):
                answer(
                    profiler,
                    domain=domain,
                    pool=pool,
                    new=round(new * random.uniform(0.5, 1.5)),
                    sampled=round(sampled * random.uniform(0.5, 1.5)),
                    costs=costs,
                    beside=beside,
                )
    return profiler


def test_the_delay_of_a_request_counts_its_own_waiting_and_the_others():
    profiler = trained()
    new_s, sampled_s, beside_s = FAST_READER
    read_s, slowed_s = 3000 * new_s, 100 * beside_s
    expected = read_s + 100 * sampled_s + 4 * slowed_s + 4 * (read_s + slowed_s)
    assert profiler.delay_s("code", "reader", 4.0) == pytest.approx(expected, rel=0.1)


def test_each_domain_delays_least_where_the_pool_is_fast_at_what_it_asks_for():
    profiler = trained()
    pools = ("reader", "writer")
    best = {
        domain: min(pools, key=lambda pool, domain=domain: profiler.delay_s(domain, pool, 5.0))
        for domain in ("code", "math")
    }
    assert best == {"code": "reader", "math": "writer"}
    assert profiler.delay_s("math", "reader", 1.0) < profiler.delay_s("math", "writer", 50.0)


def test_a_domain_is_known_on_a_pool_it_never_used():
    profiler = trained()
    for _ in range(8):
        answer(profiler, domain="web", pool="reader", new=4000, sampled=10, costs=FAST_READER)
    expected = 4000 * FAST_WRITER[0] + 10 * FAST_WRITER[1]
    assert profiler.delay_s("web", "writer", 0.0) == pytest.approx(expected, rel=0.1)


def test_eight_requests_make_a_domain_and_a_pool_known():
    profiler = Profiler()
    for count in range(8):
        assert (profiler.knows_domain("code"), profiler.knows_pool("reader")) == (False, False)
        assert profiler.weight("code", "reader") == 1.0
        answer(profiler, domain="code", pool="reader", new=count, sampled=9, costs=FAST_READER)
    assert (profiler.knows_domain("code"), profiler.knows_pool("reader")) == (True, True)
    assert (profiler.knows_domain("math"), profiler.knows_pool("writer")) == (False, False)


def test_no_cost_is_below_nothing_however_odd_the_times():
    profiler = Profiler()
    for sampled in range(1, 40):
        profiler.note(
            Answered(
                domain="odd",
                pool="odd",
                new_tokens=100 * sampled,
                sampled_tokens=sampled,
                took_s=-1.0 if sampled % 2 else 10.0 / sampled,
                beside=40 - sampled,
            )
        )
        assert all(profiler.delay_s("odd", "odd", load) >= 0 for load in (0.0, 9.0))


def test_requests_all_alike_are_explained_all_the_same():
    profiler = Profiler()
    for _ in range(50):
        answer(profiler, domain="code", pool="reader", new=1000, sampled=100, costs=FAST_READER)
    assert profiler.delay_s("code", "reader", 0.0) == pytest.approx(2.1, rel=0.01)


def test_a_pool_that_became_slower_is_known_to_be_slower():
    profiler, slower = Profiler(), tuple(3 * cost for cost in FAST_READER)
    for costs in [FAST_READER] * 500 + [slower] * 2500:
        answer(profiler, domain="code", pool="reader", new=1000, sampled=100, costs=costs)
    assert profiler.delay_s("code", "reader", 0.0) == pytest.approx(6.3, rel=0.05)


def test_an_episode_counts_by_how_busy_it_keeps_its_engine():
    profiler = Profiler()
    for domain, idle_s in (("code", 3.0), ("math", 0.0), ("math", 0.0)):
        for _ in range(10):
            answer(profiler, domain=domain, pool="p", new=0, sampled=100, costs=(0.0, 0.01, 0.0))
            profiler.note_idle(domain, "p", idle_s)
    assert profiler.weight("math", "p") == pytest.approx(2.0, rel=0.01)
    assert profiler.weight("code", "p") == pytest.approx(0.5, rel=0.01)


def test_requests_that_take_no_time_make_every_episode_count_the_same():
    profiler = Profiler()
    for _ in range(10):
        answer(profiler, domain="code", pool="p", new=1, sampled=1, costs=(0.0, 0.0, 0.0))
    assert profiler.weight("code", "p") == 1.0
    profiler.note_idle("code", "p", 1.0)
    assert (profiler.weight("code", "p"), profiler.delay_s("code", "p", 3.0)) == (1.0, 0.0)
