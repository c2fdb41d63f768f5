import pytest

from rollart.control.routing import Router, Routing
from rollart.errors import InvariantError

ENGINES = [("a", "fast"), ("b", "fast"), ("c", "wide")]


def test_a_new_episode_goes_to_the_least_loaded_engine():
    router = Router(Routing(), engines=ENGINES)
    assert [router.pick(session, domain="math") for session in range(4)] == ["a", "b", "c", "a"]
    router.done("b")
    assert router.pick(4, domain="math") == "b"
    router.check()


def test_an_episode_stays_with_the_engine_that_holds_its_prefix():
    router = Router(Routing(), engines=ENGINES)
    assert [router.pick(0, domain="math") for _ in range(3)] == ["a", "a", "a"]


def test_episodes_move_freely_when_not_sticky():
    router = Router(Routing(sticky=False), engines=ENGINES)
    assert [router.pick(0, domain="math") for _ in range(3)] == ["a", "b", "c"]


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


def test_routing_without_engines_is_a_broken_invariant():
    with pytest.raises(InvariantError, match="before any engine joined"):
        Router(Routing(), engines=[]).pick(0, domain="math")
