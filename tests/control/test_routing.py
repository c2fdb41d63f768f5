from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.control.routing import Router, Routing
from rollart.errors import InvariantError

ENGINES = [("a", "fast"), ("b", "fast"), ("c", "wide")]


def finish(router, session):
    router.done(session, now=0.0, sampled=1)


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


def test_a_session_knows_the_engine_it_asked_last():
    router = Router(Routing(), engines=[("a", "local")])
    with pytest.raises(InvariantError, match="session 3 has asked nothing yet"):
        router.home(3)
    router.pick(3, domain="games")
    assert router.home(3) == "a"
    router.done(3, now=1.0, sampled=1)
    router.close("a")
    assert router.home(3) == "a"


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


def test_a_guest_takes_any_domain_and_relieves_crowded_engines():
    router = Router(Routing(affinity={"default": ("wide",)}), engines=ENGINES)
    assert [router.pick(n, domain="math") for n in range(4)] == ["c"] * 4
    router.open("t", "training", is_guest=True)
    finish(router, 0)
    assert router.pick(0, domain="math") == "t"
    finish(router, 0)
    assert router.pick(0, domain="math") == "t"
    finish(router, 1)
    assert router.pick(1, domain="math") == "c"
    assert [router.pick(n, domain="math") for n in (5, 6, 7)] == ["t", "t", "c"]
    router.close("t")
    finish(router, 0)
    assert router.pick(0, domain="math") == "c"
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
        self.homes, self.in_flight = {}, {}
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
        self.in_flight = {s: None if home == engine else home for s, home in self.in_flight.items()}

    def pick(self, session, domain):
        home = self.homes.get(session)
        if home is None or not self.rule.sticky:
            named = [self.pools[pool] for pool in self.rule.pools(domain) if self.pools[pool]]
            home = min([*named, list(self.load)][0], key=self.load.__getitem__)
        self.homes[session] = self.in_flight[session] = home
        self.load[home] += 1
        return home

    def land(self, session):
        home = self.in_flight.pop(session, None)
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
    in_flight, opened = set(), {engine for engine, _ in ENGINES}
    for number, (verb, n) in enumerate(steps):
        router.check()
        engine = "abcdefghijklm"[n]
        if verb == "pick" and n not in in_flight:
            in_flight.add(n)
            home = router.pick(n, domain=DOMAINS[n % 3], now=number, length=10 * number)
            assert home in opened
            if reference:
                assert reference.pick(n, DOMAINS[n % 3]) == home
        elif verb in ("done", "cancelled") and n in in_flight:
            in_flight.remove(n)
            if verb == "done":
                router.done(n, now=number, sampled=n)
            else:
                router.cancelled(n)
            if reference:
                reference.land(n)
        elif verb == "forget":
            in_flight.discard(n)
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


POOLS = [*((f"r{n}", "reader") for n in range(2)), *((f"w{n}", "writer") for n in range(2))]
SHAPES = {"code": (3000, 50), "math": (100, 900)}
COSTS = {"reader": (1e-4, 0.02), "writer": (1e-3, 0.01)}


class Closed:
    """Plays so many episodes at once, of one request after the other, on engines of two pools."""

    def __init__(self, router):
        self.router, self.now, self.number = router, 0.0, 0
        self.live, self.went = [], []

    def start(self, domain):
        self.number += 1
        session, (new, sampled) = self.number, SHAPES[domain]
        engine = self.router.pick(session, domain=domain, now=self.now, length=new)
        new_s, sampled_s = COSTS["reader" if engine[0] == "r" else "writer"]
        took_s = new * new_s + sampled * sampled_s
        self.live.append((self.now + took_s, session, sampled))
        self.went.append((domain, engine[0]))

    def finish(self):
        """Let the episode end whose request is answered first."""
        due = min(self.live)
        self.live.remove(due)
        self.now, session, sampled = due
        self.router.done(session, now=self.now, sampled=sampled)
        self.router.forget(session)

    def run(self, domains):
        for domain in domains:
            if len(self.live) == 4:
                self.finish()
            self.start(domain)
            self.router.check()
        return self.went


def test_a_router_that_learns_finds_the_pool_that_is_fast_at_what_a_domain_asks_for():
    wrong = {"code": ("writer",), "math": ("reader",)}
    router = Router(Routing(affinity=wrong, learn=True), engines=POOLS)
    went = Closed(router).run(["code", "math"] * 250)
    assert set(went[:16]) == {("code", "w"), ("math", "r")}
    late = went[300:]
    assert late.count(("code", "r")) + late.count(("math", "w")) > 0.9 * len(late)


def test_until_a_domain_is_known_affinity_decides_and_then_an_unknown_pool_is_tried():
    router = Router(Routing(affinity={"code": ("reader",)}, learn=True), engines=POOLS)
    went = Closed(router).run(["code"] * 40)
    assert [engine for _, engine in went].index("w") == 16


def test_a_known_pool_long_passed_by_is_tried_again():
    router = Router(Routing(learn=True), engines=POOLS)
    world = Closed(router)
    world.run(["code", "math"] * 40)
    tried = [engine for _, engine in world.run(["code"] * 700)[-600:]]
    assert 1 <= tried.count("w") <= 3


def test_until_anything_is_known_a_router_that_learns_keeps_episodes_where_they_are():
    router = Router(Routing(learn=True), engines=[("a", "p"), ("b", "p")])
    assert [router.pick(n, domain="code", length=9) for n in range(3)] == ["a", "b", "a"]
    router.done(0, now=1.0, sampled=1)
    router.pick(3, domain="code", length=9)
    assert [router.pick(0, domain="code", now=1.0, length=19)] == ["a"]
    router.check()


def crowd(router, *, held_s):
    """Teach a router what held tokens cost; return where an episode goes whose home is crowded."""
    for number in range(400):
        held, now = 0, 100.0 * number
        for turn in range(3):
            tokens = held + 500
            router.pick(number, domain="code", now=now, length=tokens)
            now += 1e-3 * (500 + number % 7) + held_s * held + 0.1
            router.done(number, now=now, sampled=100 + number % 7 + turn)
            held = tokens + 100 + number % 7 + turn
        router.forget(number)
    now = 1e6
    home = router.pick(900, domain="code", now=now, length=9000)
    router.done(900, now=now + 9.1, sampled=100)
    others = [router.pick(n, domain="code", now=now, length=10) for n in (901, 902, 903)]
    assert others.count(home) == 2
    router.forget(next(n for n in (901, 902, 903) if others[n - 901] != home))
    return router.pick(900, domain="code", now=now + 10, length=9200) == home


def test_an_episode_leaves_a_crowded_home_only_if_its_prefix_is_not_worth_the_wait():
    engines = [("a", "p"), ("b", "p")]
    assert crowd(Router(Routing(learn=True), engines=engines), held_s=0.0)
    assert not crowd(Router(Routing(learn=True), engines=engines), held_s=1e-3)


def test_a_pool_without_engines_is_not_passed_by():
    router = Router(Routing(learn=True), engines=[("a", "fast"), ("c", "wide")])
    router.close("c")
    for session in range(20):
        assert router.pick(session, domain="math") == "a"
    router.open("c", "wide")
    assert [router.pick(n, domain="math") for n in (20, 21)] == ["c", "c"]


def test_a_guest_nothing_is_known_of_is_judged_as_the_preferred_pool():
    rule = Routing(affinity={"default": ("reader",)}, learn=True)
    router = Router(rule, engines=[("r0", "reader"), ("w0", "writer")])
    world = Closed(router)
    world.run(["code"] * 14)
    router.open("t", "training", is_guest=True)
    assert router.pick(900, domain="code", now=world.now, length=3000) == "t"


def learned(router):
    """Return the tokens each request was measured by."""
    seen = []
    note = router._profiler.note
    router._profiler.note = lambda request: (seen.append(request), note(request))
    return seen


def test_tokens_an_engine_has_seen_and_others_are_told_apart():
    router = Router(Routing(learn=True), engines=ENGINES[:2])
    seen = learned(router)
    router.pick(0, domain="math", now=0.0, length=10)
    router.done(0, now=1.0, sampled=5)
    router.pick(0, domain="math", now=3.0, length=22)
    router.cancelled(0)
    router.pick(0, domain="math", now=4.0, length=22)
    router.done(0, now=6.0, sampled=1)
    router.close("a")
    router.pick(0, domain="math", now=7.0, length=30)
    router.done(0, now=8.0, sampled=2)
    charged = [(e.new, e.held, e.sampled, e.took_s, e.beside) for e in seen]
    assert charged == [(10, 0, 5, 1.0, 0), (7, 15, 1, 2.0, 0), (30, 0, 2, 1.0, 0)]


def test_a_router_knows_which_engines_take_requests():
    router = Router(Routing(), engines=[("a", "gpu")])
    assert (router.has_engines, router.is_open("a"), router.is_open("b")) == (True, True, False)
    router.close("a")
    assert (router.has_engines, router.is_open("a")) == (False, False)
