"""The group of ranks on real processes that hold no model."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rollart.errors import ConfigError, InvariantError
from rollart.runtime.host import ActorDiedError, EmbeddedHost
from rollart.training.ranks import RankGroup, RankPlan


def run(use: Callable[[RankGroup], Awaitable[None]], *, ranks: int = 2, **options) -> None:
    async def go() -> None:
        host = EmbeddedHost(grace_s=0.3)
        plan = RankPlan(options=options, ranks=ranks, target="rank_stand_in:StandIn", grace_s=0.3)
        try:
            group = await RankGroup.start(host, plan)
            await use(group)
            await group.close()
        finally:
            await host.close()

    asyncio.run(go())


def test_every_rank_knows_its_place_and_the_first_one_answers():
    async def use(group: RankGroup) -> None:
        rank, size, rendezvous = await group.call("place")
        assert (rank, size) == (0, 3)
        meeting = Path(rendezvous.removeprefix("file://"))
        assert meeting.parent.is_dir()
        await group.close()
        assert not meeting.parent.exists()

    run(use, ranks=3)


def test_calls_reach_all_ranks_in_one_order_even_if_nobody_waits_for_them():
    async def use(group: RankGroup) -> None:
        unheard = asyncio.create_task(group.call("hear", "first", 0.3))
        await asyncio.sleep(0.1)
        unheard.cancel()
        assert await group.call("hear", "second", 0.0) == ["first", "second"]

    run(use)


def test_what_all_ranks_refuse_alike_breaks_nothing():
    async def use(group: RankGroup) -> None:
        with pytest.raises(InvariantError, match="a bad batch"):
            await group.call("refuse")
        assert (await group.call("place"))[0] == 0

    run(use)


def test_what_one_rank_refuses_ends_them_all():
    async def use(group: RankGroup) -> None:
        for _ in range(2):
            with pytest.raises(InvariantError, match="rank 1 alone"):
                await group.call("refuse_alone", 1)
        assert await group.restart("7") == 7
        assert (await group.call("place"))[0] == 0

    run(use)


@pytest.mark.parametrize("dying", [0, 1])
def test_a_rank_that_dies_is_named_and_the_group_made_anew(dying):
    async def use(group: RankGroup) -> None:
        with pytest.raises(ActorDiedError, match="was killed by SIGKILL"):
            await group.call("die", dying)
        with pytest.raises(ActorDiedError, match="was killed by SIGKILL"):
            await group.call("place")
        assert await group.restart("7") == 7
        assert await group.call("hear", "again", 0.0) == ["again"]

    run(use)


def test_a_rank_that_cannot_be_made_ends_those_that_wait_for_it():
    async def use(_: RankGroup) -> None:
        pytest.fail("no group was to be had")

    with pytest.raises(ConfigError, match=re.escape("model = 1: is not there")):
        run(use, failing=1)


def test_a_group_that_was_closed_says_so():
    async def use(group: RankGroup) -> None:
        await group.close()
        with pytest.raises(InvariantError, match="the ranks were closed"):
            await group.call("place")

    run(use)
