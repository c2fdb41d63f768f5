"""The supervisor on actors that only note what becomes of them, in virtual time."""

import asyncio

import pytest
import virtual_time

from rollart.cluster.supervisor import Place, RestartPolicy, Role, Supervisor, close_quietly


class Shop:
    """A role whose actors are their names, and all that happened to them."""

    def __init__(self, **options):
        self.happened = []
        self.warnings = []
        self.failures = 0
        self.made = {}
        self.door = asyncio.Event()
        self.door.set()
        self.role = Role(
            make=self.make,
            end=self.note("end"),
            retire=lambda place, actor: self.note("retire")(actor),
            join=lambda place, actor: self.happened.append(("join", actor)),
            release=lambda name: self.happened.append(("release", name)),
            give_up=lambda place, error: self.happened.append(("give up", str(error))),
            warn=self.warnings.append,
            **{
                "take_over": self.note("take over"),
                "restarts": RestartPolicy(first_rest_s=0.001, longest_rest_s=0.002),
                **options,
            },
        )

    async def make(self, place, name):
        await self.door.wait()
        if self.failures:
            self.failures -= 1
            raise OSError("no room")
        self.made[name] = name
        return name

    def note(self, what):
        async def happen(actor):
            self.happened.append((what, actor))

        return happen

    async def until(self, count):
        while len(self.happened) < count:
            await asyncio.sleep(0.001)


def supervised(scenario, *, names=("a",), **options):
    async def run():
        shop = Shop(**options)
        places = [Place(name=name, title=f"actor {name}") for name in names]
        supervisor = Supervisor(shop.role, places=places)
        await supervisor.start()
        try:
            await asyncio.wait_for(scenario(shop, supervisor, *places), 20)
        finally:
            await supervisor.close()

    virtual_time.run(lambda _loop: run())


def test_a_lost_actor_is_ended_before_another_joins_under_a_new_name():
    async def scenario(shop, supervisor, a, b):
        assert (a.actor, b.actor) == ("a", "b")
        supervisor.lose(a, shop.made["a"])
        assert a.actor is None
        await shop.until(4)
        assert shop.happened[2:] == [("end", "a"), ("join", "a.1")]
        assert (a.actor, b.actor) == ("a.1", "b")

    supervised(scenario, names="ab")


def test_an_actor_that_cannot_be_made_is_tried_again_and_each_reason_told_once():
    async def scenario(shop, supervisor, a):
        shop.failures = 3
        supervisor.lose(a, shop.made["a"])
        await shop.until(6)
        assert shop.happened[2:] == [("release", f"a.{n}") for n in (1, 2, 3)] + [("join", "a.4")]
        assert shop.warnings == ["actor a cannot be made now: no room"]

    supervised(scenario)


def test_after_enough_tries_a_role_that_may_give_up_does():
    async def scenario(shop, supervisor, a):
        shop.failures = 99
        supervisor.lose(a, shop.made["a"])
        while ("give up", "no room") not in shop.happened:
            await asyncio.sleep(0.001)
        assert shop.failures == 97

    supervised(scenario, restarts=RestartPolicy(first_rest_s=0.001, tries=2))


def test_a_role_that_may_not_give_up_goes_on_trying():
    async def scenario(shop, supervisor, a):
        shop.failures = 5
        supervisor.lose(a, shop.made["a"])
        while a.actor is None:
            await asyncio.sleep(0.001)
        assert a.actor == "a.6"

    policy = RestartPolicy(first_rest_s=0.001, longest_rest_s=0.001, tries=2)
    supervised(scenario, restarts=policy, may_give_up=lambda: False)


def test_an_error_that_no_try_mends_is_raised_at_once():
    async def scenario(shop, supervisor, a):
        shop.failures, a.actor = 9, None
        with pytest.raises(OSError, match="no room"):
            await supervisor.make_again(a)
        assert shop.failures == 8

    supervised(scenario, restarts=RestartPolicy(retried=(ValueError,)))


def test_an_actor_works_until_its_successor_has_taken_over():
    async def scenario(shop, supervisor, a):
        shop.door.clear()
        moving = asyncio.create_task(supervisor.move_home())
        await asyncio.sleep(0.01)
        assert a.actor == "a"
        assert await supervisor.move_home()  # it moves already
        shop.door.set()
        assert await moving
        assert shop.happened[1:] == [("take over", "a.1"), ("join", "a.1"), ("retire", "a")]
        assert shop.warnings == ["actor a moves to its preferred pool"]

    supervised(scenario, is_better=lambda place: place.actor == "a")


def test_where_no_successor_can_be_made_the_actor_stays():
    async def scenario(shop, supervisor, a):
        shop.failures = 1
        assert not await supervisor.move(a)
        assert (a.actor, a.successor) == ("a", None)
        assert shop.warnings[1:] == ["actor a cannot move: no room"]

    supervised(scenario)


def test_a_successor_that_cannot_take_over_is_ended():
    async def refuse(actor):
        raise ValueError("no such state")

    async def scenario(shop, supervisor, a):
        assert not await supervisor.move(a)
        assert (a.actor, shop.happened[1:]) == ("a", [("end", "a.1")])

    supervised(scenario, take_over=refuse)


@pytest.mark.parametrize("failures", [0, 1])
def test_an_actor_lost_while_it_moves_is_replaced_by_its_successor_and_no_third(failures):
    async def scenario(shop, supervisor, a):
        shop.door.clear()
        moving = asyncio.create_task(supervisor.move(a))
        await asyncio.sleep(0.01)
        supervisor.lose(a, shop.made["a"])
        await asyncio.sleep(0.01)
        shop.failures = failures
        shop.door.set()
        assert await moving == (not failures)
        while a.actor is None:
            await asyncio.sleep(0.001)
        assert a.actor == f"a.{1 + failures}"
        assert [what for what, _ in shop.happened].count("join") == 2

    supervised(scenario)


def test_a_retired_actor_that_is_lost_is_ended_and_not_replaced():
    async def scenario(shop, supervisor, a):
        await supervisor.move(a)
        supervisor.lose(a, shop.made["a"])
        await shop.until(5)
        await asyncio.sleep(0.01)
        assert shop.happened[1:] == [
            ("take over", "a.1"),
            ("join", "a.1"),
            ("retire", "a"),
            ("end", "a"),
        ]

    supervised(scenario)


def test_a_move_that_is_cancelled_ends_the_successor_that_was_being_made():
    async def scenario(shop, supervisor, a):
        shop.door.clear()
        moving = asyncio.create_task(supervisor.move(a))
        await asyncio.sleep(0.01)
        moving.cancel()
        await shop.until(2)
        assert (shop.happened[1:], a.successor, a.actor) == ([("release", "a.1")], None, "a")

    supervised(scenario)


def test_after_its_close_nothing_is_made():
    async def scenario(shop, supervisor, a):
        shop.door.clear()
        supervisor.lose(a, shop.made["a"])
        await shop.until(2)
        await supervisor.close()
        supervisor.lose(a, shop.made["a"])
        await asyncio.sleep(0.01)
        assert shop.happened[1:] == [("end", "a"), ("release", "a.1")]

    supervised(scenario)


def test_ending_an_actor_that_died_already_raises_nothing():
    class Dead:
        async def close(self):
            raise OSError("no such process")

    async def run():
        await close_quietly(None)
        await close_quietly(Dead())

    virtual_time.run(lambda _loop: run())
