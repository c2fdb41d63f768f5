"""Requests find an engine, go on in another, or wait for one."""

import asyncio

import pytest
from conditions import BOUND_S, settled

from rollart.control.routing import Router, Routing
from rollart.errors import InvariantError
from rollart.inference.driver import RequestError
from rollart.rollout.engine_client import EngineClient
from rollart.types import Completion, Request, Sampling


class Teller:
    """An engine that says a letter of its own, `say` tokens at most before it gives back."""

    def __init__(self, letter, *, say=99, then=lambda: None):
        self.letter = letter
        self.say = say
        self.then = then
        self.asked = []
        self.forgotten = []

    async def generate(self, request, on_cut=None):
        await asyncio.sleep(0)
        self.asked.append(request)
        self.then()
        count = min(self.say, request.sampling.max_tokens)
        return Completion(
            session=request.session,
            turn=request.turn,
            tokens=(self.letter,) * count,
            logprobs=(0.0,) * count,
            versions=(0,) * count,
            finish="length" if count == request.sampling.max_tokens else "abort",
        )

    def forget(self, session):
        self.forgotten.append(session)


class Refusing:
    async def generate(self, request, on_cut=None):
        raise RequestError("too long")

    def forget(self, session):
        pass


def ask(session=1, *, domain="games", max_tokens=5):
    return Request(
        session=session,
        turn=0,
        domain=domain,
        tokens=(7, 7),
        sampling=Sampling(max_tokens=max_tokens),
        stop=(0,),
        seed=3,
    )


def connected(scenario, *, affinity=None, on_cut=None):
    async def run():
        router = Router(Routing(affinity=affinity or {}), engines=())
        board = EngineClient(router, generators={}, now=lambda: 0.0, on_cut=on_cut)
        await asyncio.wait_for(scenario(board), BOUND_S)
        router.check()

    asyncio.run(run())


def test_a_request_waits_while_no_engine_is_open():
    async def scenario(board):
        board.add("a", Teller(1))
        waiting = [asyncio.create_task(board.complete(ask(n))) for n in (1, 2)]
        await settled()
        waiting[1].cancel()
        await asyncio.sleep(0)
        assert not waiting[0].done()
        board.open("a", "local")
        assert (await waiting[0]).tokens == (1, 1, 1, 1, 1)
        assert waiting[1].cancelled()

    connected(scenario)


def test_what_an_engine_gives_back_goes_on_in_another_with_the_tokens_it_has():
    async def scenario(board):
        def leave():
            board.close("a")
            board.open("b", "local")

        other = Teller(2)
        board.add("a", Teller(1, say=2, then=leave))
        board.add("b", other)
        board.open("a", "local")
        completion = await board.complete(ask())
        assert (completion.tokens, completion.finish) == ((1, 1, 2, 2, 2), "length")
        assert other.asked[0].tokens == (7, 7, 1, 1)
        assert other.asked[0].sampling.max_tokens == 3
        assert board.home(1) == "b"

    connected(scenario)


def test_what_was_given_back_and_then_cancelled_is_told():
    cut = []

    async def scenario(board):
        board.add("a", Teller(1, say=2, then=lambda: board.close("a")))
        board.open("a", "local")
        asking = asyncio.create_task(board.complete(ask(6)))
        await settled()
        asking.cancel()
        await asyncio.wait({asking})
        await asyncio.sleep(0)
        assert cut == [(6, 2)]

    connected(scenario, on_cut=lambda *told: cut.append(told))


def test_an_ended_session_is_forgotten_where_its_prefix_is_held():
    async def scenario(board):
        teller = Teller(1)
        board.add("a", teller)
        board.open("a", "local")
        await board.complete(ask(4))
        board.forget(4)
        board.forget(5)
        assert teller.forgotten == [4]
        with pytest.raises(InvariantError):
            board.home(4)

    connected(scenario)


def test_a_session_whose_engine_closed_is_forgotten_nowhere():
    async def scenario(board):
        teller = Teller(1)
        board.add("a", teller)
        board.open("a", "local")
        await board.complete(ask(4))
        board.close("a")
        board.close("a")
        board.forget(4)
        assert teller.forgotten == []

    connected(scenario)


def test_a_refusal_reaches_the_one_who_asked():
    async def scenario(board):
        board.add("a", Refusing())
        board.open("a", "local")
        with pytest.raises(RequestError, match="too long"):
            await board.complete(ask())
        board.forget(1)

    connected(scenario)


def test_a_domain_is_served_by_its_pool_by_the_other_while_it_is_closed_and_by_its_own_again():
    async def scenario(board):
        for name, pool in (("a", "compute"), ("b", "bandwidth")):
            board.add(name, Teller(1))
            board.open(name, pool)
        homes = []
        for session, change in enumerate(
            (lambda: None, lambda: board.close("a"), lambda: board.open("a", "compute"))
        ):
            change()
            await board.complete(ask(session, domain="maze"))
            homes.append(board.home(session))
        assert homes == ["a", "b", "a"]

    connected(scenario, affinity={"maze": ("compute", "bandwidth")})
