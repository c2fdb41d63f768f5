from random import Random

import pytest

from rollart.control.latency_model import Answered, Profiler

FAST_READER, FAST_WRITER = (1e-4, 0.02, 2e-3), (5e-4, 0.01, 1e-3)


def answer(profiler, *, domain, pool, new, sampled, costs, beside=0.0, held=0, held_s=0.0):
    """Tell of a request that took as long as the costs say."""
    new_s, sampled_s, beside_s = costs
    took_s = new * new_s + held * held_s + sampled * (sampled_s + beside * beside_s)
    profiler.note(
        Answered(
            domain=domain,
            pool=pool,
            new=new,
            held=held,
            sampled=sampled,
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


def delay_s(profiler, domain, pool, *, beside=0, held=0):
    """Return the delay of a domain's usual request."""
    new = {"code": 3000, "math": 200}[domain]
    return profiler.delay_s(domain, pool, new=new - held, held=held, beside=beside)


def test_the_delay_of_a_request_counts_its_own_waiting_and_the_others():
    profiler = trained()
    new_s, sampled_s, beside_s = FAST_READER
    read_s, slowed_s = 3000 * new_s, 100 * beside_s
    expected = read_s + 100 * sampled_s + 4 * slowed_s + 4 * (read_s + slowed_s)
    assert delay_s(profiler, "code", "reader", beside=4) == pytest.approx(expected, rel=0.1)


def test_each_domain_delays_least_where_the_pool_is_fast_at_what_it_asks_for():
    profiler = trained()
    best = {
        domain: min(
            ("reader", "writer"),
            key=lambda pool, domain=domain: delay_s(profiler, domain, pool, beside=5),
        )
        for domain in ("code", "math")
    }
    assert best == {"code": "reader", "math": "writer"}
    here = delay_s(profiler, "math", "reader", beside=1)
    assert here < delay_s(profiler, "math", "writer", beside=50)


@pytest.mark.parametrize(("held_s", "saved"), [(0.0, 0.3), (1e-4, 0.0)])
def test_what_a_held_prefix_saves_is_measured(held_s, saved):
    profiler, random = Profiler(), Random(0)
    for _ in range(400):
        new, held = random.choice([(3000, 0), (100, 2900), (100, 5000)])
        sampled = random.randint(50, 150)
        told = {"new": new, "held": held, "sampled": sampled, "held_s": held_s}
        answer(profiler, domain="code", pool="reader", costs=FAST_READER, **told)
        delay_s(profiler, "code", "reader")
    moves, stays = (delay_s(profiler, "code", "reader", held=held) for held in (0, 2900))
    assert moves - stays == pytest.approx(saved, abs=0.03)


def test_a_long_request_tells_no_more_than_a_short_one():
    profiler = Profiler()
    for number in range(200):
        answer(profiler, domain="code", pool="reader", new=3000, sampled=100, costs=FAST_READER)
        odd = tuple((0.5 + number % 2) * cost for cost in FAST_READER)
        answer(profiler, domain="math", pool="reader", new=200, sampled=90000, costs=odd)
    for _ in range(300):
        answer(profiler, domain="code", pool="reader", new=3000, sampled=100, costs=FAST_READER)
    assert delay_s(profiler, "code", "reader") < 40


def test_eight_requests_make_a_domain_known_on_a_pool():
    profiler = Profiler()
    for count in range(8):
        assert not profiler.knows("code", "reader")
        answer(profiler, domain="code", pool="reader", new=count, sampled=9, costs=FAST_READER)
    assert profiler.knows("code", "reader")
    assert not profiler.knows("code", "writer")
    assert not profiler.knows("math", "reader")


def test_no_cost_is_below_nothing_however_odd_the_times():
    profiler = Profiler()
    for sampled in range(1, 80):
        profiler.note(
            Answered(
                domain="math",
                pool="odd",
                new=100 * sampled,
                held=sampled % 3,
                sampled=sampled,
                took_s=0.0 if sampled % 2 else 10.0 / sampled,
                beside=80 - sampled,
            )
        )
        assert all(delay_s(profiler, "math", "odd", beside=beside) >= 0 for beside in (0, 9))


def test_requests_all_alike_are_explained_all_the_same():
    profiler = Profiler()
    for _ in range(50):
        answer(profiler, domain="code", pool="reader", new=3000, sampled=100, costs=FAST_READER)
    assert delay_s(profiler, "code", "reader") == pytest.approx(2.3, rel=0.01)


def test_a_pool_that_became_slower_is_known_to_be_slower():
    profiler, slower = Profiler(), tuple(3 * cost for cost in FAST_READER)
    for costs in [FAST_READER] * 500 + [slower] * 8000:
        answer(profiler, domain="code", pool="reader", new=3000, sampled=100, costs=costs)
    assert delay_s(profiler, "code", "reader") == pytest.approx(6.9, rel=0.05)
