"""The group of ranks on real processes that hold no model."""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable

import pytest
from conditions import settled
from rank_stand_in import StandIn

from rollart.cluster.local_host import EmbeddedHost
from rollart.cluster.trainer_supervisor import TrainerClient, TrainerSupervisor
from rollart.cluster.worker_group import Registered
from rollart.errors import ConfigError, GroupError, InvariantError
from rollart.training.distributed.ranks import Rank, RankGroup, RankPlan
from rollart.training.distributed.rendezvous import LOOPBACK
from rollart.training.trainer import TorchTrainer


def run(
    use: Callable[[RankGroup], Awaitable[None]], *, ranks: int = 2, grace_s: float = 0.3, **options
) -> None:
    """Use a group; after `grace_s`, ranks that have not answered when one failed are ended."""

    async def go() -> None:
        host = EmbeddedHost(grace_s=2.0)
        plan = RankPlan(
            options=options, addresses=[LOOPBACK] * ranks, worker=StandIn, grace_s=grace_s
        )
        try:
            group = await RankGroup.start(host, plan)
            await use(group)
            await group.close()
        finally:
            await host.close()

    asyncio.run(go())


def test_every_rank_knows_its_place_and_meets_the_others_where_the_first_one_says():
    async def use(group: RankGroup) -> None:
        assert await group.call("place") == [
            [rank, 3, LOOPBACK, "where rank 0 is"] for rank in range(3)
        ]

    run(use, ranks=3)


def test_one_rank_is_a_group_that_meets_nobody():
    async def use(group: RankGroup) -> None:
        assert await group.call("place") == [[0, 1, LOOPBACK]]
        with pytest.raises(InvariantError, match="a bad batch"):
            await group.call("refuse")
        assert await group.call("hear", "on", 0.0) == ["on"]

    run(use, ranks=1)


def test_the_trainer_can_be_asked_all_that_a_rank_can():
    asked = {
        name: found.method for name, found in vars(Rank).items() if isinstance(found, Registered)
    }
    assert Rank.target == f"{TorchTrainer.__module__}:{TorchTrainer.__qualname__}"
    assert {name: inspect.signature(method) for name, method in asked.items()} == {
        name: inspect.signature(getattr(TorchTrainer, name)) for name in asked
    }


def test_only_what_is_registered_can_be_called():
    async def use(group: RankGroup) -> None:
        for name in ("unregistered", "nothing"):
            with pytest.raises(InvariantError, match=f"StandIn registers no method '{name}'"):
                await group.call(name)

    run(use, ranks=1)


def test_calls_reach_all_ranks_in_one_order_even_if_nobody_waits_for_them():
    async def use(group: RankGroup) -> None:
        unheard = asyncio.create_task(group.call("hear", "first", 0.3))
        await settled()
        unheard.cancel()
        assert await group.call("hear", "second", 0.0) == ["first", "second"]

    run(use)


def test_what_all_ranks_refuse_alike_breaks_nothing():
    async def use(group: RankGroup) -> None:
        with pytest.raises(InvariantError, match="a bad batch"):
            await group.call("refuse")
        assert (await group.call("place"))[0][0] == 0

    run(use, grace_s=60.0)


def test_what_one_rank_refuses_ends_them_all():
    async def use(group: RankGroup) -> None:
        for _ in range(2):
            with pytest.raises(GroupError, match="failed and all were ended: rank 1 alone"):
                await group.call("refuse_alone", 1)
        assert await group.restart("7") == 7
        assert (await group.call("place"))[0][0] == 0

    run(use)


@pytest.mark.parametrize("dying", [0, 1])
def test_a_rank_that_dies_is_named_and_the_group_made_anew(dying):
    async def use(group: RankGroup) -> None:
        with pytest.raises(GroupError, match="was killed by SIGKILL"):
            await group.call("die", dying)
        with pytest.raises(GroupError, match="was killed by SIGKILL"):
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


def test_a_lasting_trainer_makes_ranks_again_that_broke_without_a_death(tmp_path):
    warnings: list[str] = []

    async def go() -> None:
        host = EmbeddedHost(grace_s=2.0)
        failed = str(tmp_path / "failed")
        plan = RankPlan(
            options={"failed": failed}, addresses=[LOOPBACK] * 2, worker=StandIn, grace_s=0.3
        )

        async def make() -> TrainerClient:
            return TrainerClient(await RankGroup.start(host, plan))

        trainer = TrainerSupervisor(
            make,
            directory=tmp_path / "own",
            save_every=9,
            warn=warnings.append,
        )
        try:
            await trainer.start()
            assert await trainer.step("a batch") == "a batch"
        finally:
            await trainer.close()
            await host.close()

    asyncio.run(go())
    assert warnings == [
        "the trainer is lost; starting another (steps to repeat: 1): "
        "a training rank failed and all were ended: connection reset by peer"
    ]
