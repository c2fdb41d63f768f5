from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.control.routing import Router, Routing
from rollart.errors import InvariantError

ENGINES = [("a", "fast"), ("b", "fast"), ("c", "wide")]


def finish(router, session):
    router.done(session, now=0.0, sampled_tokens=1)


def test_a_new_episode_goes_to_the_least_loaded_engine():
    router = Router(Routing(), engines=ENGINES)
    assert [router.pick(session, domain="math") for session in range(4)] == ["a", "b", "c", "a"]
    finish(router, 1)
    assert router.pick(4, domain="math") == "b"
    router.check()


def picked_thrice(router):
    """Return where three requests of one session go while another keeps the first engine busy."""
    router.pick(9, domain="math")
    went = []
    for _ in range(3):
        went.append(router.pick(0, domain="math"))
        if len(went) == 1:
            finish(router, 9)
        finish(router, 0)
    return went


def test_an_episode_stays_with_the_engine_that_holds_its_prefix():
    assert picked_thrice(Router(Routing(), engines=ENGINES)) == ["b", "b", "b"]


def test_episodes_move_freely_when_not_sticky():
    assert picked_thrice(Router(Routing(sticky=False), engines=ENGINES)) == ["b", "a", "a"]


def test_a_domain_prefers_its_pools_in_order_and_falls_back_to_any():
    affinity = {"math": ("gone", "wide"), "game": ("gone",), "default": ("fast",)}
    router = Router(Routing(affinity=affinity), engines=ENGINES)
    assert [router.pick(n, domain="math") for n in range(2)] == ["c", "c"]
    assert [router.pick(n, domain="lake") for n in range(2, 4)] == ["a", "b"]
    assert router.pick(4, domain="game") == "a"


def test_a_forgotten_session_names_the_engine_that_held_its_prefix():
    router = Router(Routing(), engines=ENGINES)
    router.pick(7, domain="math")
    assert [router.forget(7), router.forget(7)] == ["a", None]
    assert router.pick(8, domain="math") == "a"


def test_a_request_given_up_takes_its_load_along():
    router = Router(Routing(), engines=ENGINES)
    router.pick(0, domain="math")
    router.cancelled(0)
    assert router.pick(1, domain="math") == "a"


def test_the_episodes_of_a_closed_engine_find_another_home():
    router = Router(Routing(), engines=ENGINES)
    router.pick(0, domain="math")
    router.close("a")
    finish(router, 0)
    assert router.forget(0) is None
    assert [router.pick(n, domain="math") for n in (1, 2, 3)] == ["b", "c", "b"]
    router.close("b")
    finish(router, 1)
    router.open("b", "wide")
    assert [router.pick(n, domain="math") for n in (1, 4)] == ["b", "c"]
    router.check()


def test_routing_without_engines_is_a_broken_invariant():
    with pytest.raises(InvariantError, match="before any engine joined"):
        Router(Routing(), engines=[]).pick(0, domain="math")


def test_requests_out_of_turn_are_broken_invariants():
    router = Router(Routing(), engines=ENGINES)
    with pytest.raises(InvariantError, match="session 0 has no request in flight"):
        finish(router, 0)
    router.pick(0, domain="math")
    with pytest.raises(InvariantError, match="session 0 asks again before it was answered"):
        router.pick(0, domain="math")
    finish(router, 0)
    with pytest.raises(InvariantError, match="session 0 has no request in flight"):
        router.cancelled(0)
    with pytest.raises(InvariantError, match="engine a is open already"):
        router.open("a", "fast")


class Reference:
    """The rule without learning, in the fewest words: a minimum over all engines of a pool."""

    def __init__(self, rule, engines):
        self.rule, self.pools, self.load = rule, defaultdict(list), {}
        self.homes, self.flying = {}, {}
        for engine, pool in engines:
            self.open(engine, pool)

    def open(self, engine, pool):
        self.pools[pool].append(engine)
        self.load[engine] = 0

    def close(self, engine):
        for pool in self.pools.values():
            if engine in pool:
                pool.remove(engine)
        del self.load[engine]
        self.homes = {session: home for session, home in self.homes.items() if home != engine}
        self.flying = {s: None if home == engine else home for s, home in self.flying.items()}

    def pick(self, session, domain):
        home = self.homes.get(session)
        if home is None or not self.rule.sticky:
            named = [self.pools[pool] for pool in self.rule.pools(domain) if self.pools[pool]]
            home = min([*named, list(self.load)][0], key=self.load.__getitem__)
        self.homes[session] = self.flying[session] = home
        self.load[home] += 1
        return home

    def land(self, session):
        home = self.flying.pop(session, None)
        if home is not None:
            self.load[home] -= 1

    def forget(self, session):
        self.land(session)
        return self.homes.pop(session, None)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["pick", "pick", "done", "cancelled", "forget", "open", "close"]),
        st.integers(0, 12),
    ),
    max_size=120,
)
AFFINITY = {"math": ("gone", "wide"), "game": ("fast", "wide")}
DOMAINS = ("math", "game", "lake")


def play(router, steps, *, reference=None):
    """Obey the steps that make sense; compare every answer with the reference's."""
    flying, opened = set(), {engine for engine, _ in ENGINES}
    for number, (verb, n) in enumerate(steps):
        router.check()
        engine = "abcdefghijklm"[n]
        if verb == "pick" and n not in flying:
            flying.add(n)
            home = router.pick(n, domain=DOMAINS[n % 3], now=number, tokens=10 * number)
            assert home in opened
            if reference:
                assert reference.pick(n, DOMAINS[n % 3]) == home
        elif verb in ("done", "cancelled") and n in flying:
            flying.remove(n)
            if verb == "done":
                router.done(n, now=number, sampled_tokens=n)
            else:
                router.cancelled(n)
            if reference:
                reference.land(n)
        elif verb == "forget":
            flying.discard(n)
            home = router.forget(n)
            if reference:
                assert reference.forget(n) == home
        elif verb == "open" and engine not in opened:
            opened.add(engine)
            for each in filter(None, (router, reference)):
                each.open(engine, ("fast", "wide")[n % 2])
        elif verb == "close" and engine in opened and len(opened) > 1:
            opened.remove(engine)
            for each in filter(None, (router, reference)):
                each.close(engine)


@given(steps=STEPS, sticky=st.booleans(), named=st.booleans())
def test_without_learning_the_least_loaded_engine_of_the_preferred_pool_is_taken(
    steps, sticky, named
):
    rule = Routing(sticky=sticky, affinity=AFFINITY if named else {})
    play(Router(rule, engines=ENGINES), steps, reference=Reference(rule, ENGINES))


@given(steps=STEPS, sticky=st.booleans())
def test_whatever_is_learned_loads_are_never_negative(steps, sticky):
    play(Router(Routing(sticky=sticky, learn=True, affinity=AFFINITY), engines=ENGINES), steps)
