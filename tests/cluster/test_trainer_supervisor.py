"""A trainer in a real process that is killed: the same versions, whoever called none the wiser."""

import asyncio
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
from conditions import BOUND_S, until

from rollart.cluster.local_host import EmbeddedHost
from rollart.cluster.trainer_supervisor import RESTARTS, TrainerClient, TrainerSupervisor
from rollart.errors import PlacementError, UserError


class Desk:
    """A lasting trainer, its files and its warnings."""

    def __init__(self, path, *, save_every, restarts):
        self.path = path
        self.host = EmbeddedHost()
        self.warnings = []
        self.unplaced = 0
        self.asked = 0
        self.spawned = 0
        self.door = asyncio.Event()
        self.door.set()
        self.trainer = TrainerSupervisor(
            self.spawn,
            directory=path / "own",
            save_every=save_every,
            warn=self.warnings.append,
            restarts=restarts,
        )

    async def spawn(self):
        self.asked += 1
        await self.door.wait()
        if self.unplaced:
            self.unplaced -= 1
            raise PlacementError("every pool is full")
        self.spawned += 1
        options = {"desk": str(self.path)}
        return TrainerClient(
            await self.host.spawn("trainer_actors:Adder", options, own_process=True)
        )

    async def step(self, number):
        report = await self.trainer.step({"numbers": np.array([number])})
        return report.version, report.metrics["sum"]

    async def kill(self):
        os.kill(await self.pid(), signal.SIGKILL)

    async def pid(self):
        return await self.trainer.trainer.handle.call("pid")

    def plain_warnings(self):
        """What was warned of, without the words of the operating system."""
        return [warning.split(": the process ")[0] for warning in self.warnings]

    def published(self):
        return (self.path / "published").read_text().split()


def with_trainer(path, scenario, *, save_every=100, **policy):
    async def run():
        desk = Desk(path, save_every=save_every, restarts=replace(RESTARTS, **policy))
        try:
            await desk.trainer.start()
            await asyncio.wait_for(scenario(desk), 2 * BOUND_S)
        finally:
            await desk.trainer.close()
            await desk.host.close()

    asyncio.run(run())


def test_killed_between_two_steps_it_repeats_the_batches_and_goes_on(tmp_path):
    async def scenario(desk):
        assert [await desk.step(n) for n in (1, 2)] == [(1, 1.0), (2, 3.0)]
        await desk.kill()
        assert await desk.step(4) == (3, 7.0)
        assert desk.trainer.deaths == 1
        assert desk.plain_warnings() == [
            "the trainer is lost; starting another (steps to repeat: 3)"
        ]

    with_trainer(tmp_path, scenario)


def test_killed_during_a_step_it_makes_that_step_again(tmp_path):
    async def scenario(desk):
        await desk.step(1)
        (tmp_path / "hang").touch()
        (tmp_path / "stepping").unlink()
        stepping = asyncio.create_task(desk.step(2))
        await until((tmp_path / "stepping").exists)
        await until((tmp_path / "stepping").read_text)
        os.kill(int((tmp_path / "stepping").read_text()), signal.SIGKILL)
        (tmp_path / "hang").unlink()
        assert await stepping == (2, 3.0)
        assert await desk.step(4) == (3, 7.0)

    with_trainer(tmp_path, scenario)


def test_it_saves_for_itself_and_repeats_only_what_came_later(tmp_path):
    async def scenario(desk):
        for number in (1, 2, 4, 8, 16):
            await desk.step(number)
        assert sorted(each.name for each in (tmp_path / "own").iterdir()) == ["0", "1"]
        await desk.kill()
        assert await desk.step(32) == (6, 63.0)
        assert desk.plain_warnings() == [
            "the trainer is lost; starting another (steps to repeat: 2)"
        ]

    with_trainer(tmp_path, scenario, save_every=2)
    assert not (tmp_path / "own").exists()


def test_what_was_published_is_published_again_by_the_next_one(tmp_path):
    async def scenario(desk):
        await desk.step(1)
        assert await desk.trainer.publish() == 1
        await desk.kill()
        await desk.trainer.remake()
        assert desk.published() == ["1:1", "1:1"]
        await desk.step(2)
        await desk.kill()
        await desk.trainer.remake()
        assert desk.published() == ["1:1", "1:1"]
        assert await desk.trainer.publish() == 2
        assert desk.published()[2:] == ["2:3"]

    with_trainer(tmp_path, scenario)


def test_it_moves_with_its_state_between_two_steps(tmp_path):
    async def scenario(desk):
        await desk.step(1)
        await desk.trainer.publish()
        first = await desk.pid()
        assert await desk.trainer.move(desk.spawn)
        assert await desk.pid() != first
        with pytest.raises(ProcessLookupError):
            os.kill(first, 0)
        assert await desk.step(2) == (2, 3.0)
        assert (desk.published(), desk.trainer.deaths) == (["1:1", "1:1"], 0)
        assert desk.warnings == ["the trainer moves to its preferred pool"]
        await desk.kill()
        assert await desk.step(4) == (3, 7.0)
        assert desk.plain_warnings()[1:] == [
            "the trainer is lost; starting another (steps to repeat: 2)"
        ]

    with_trainer(tmp_path, scenario)


def test_where_its_successor_fails_as_it_dies_it_has_not_moved(tmp_path):
    async def scenario(desk):
        asked, door = asyncio.Event(), asyncio.Event()

        async def refuse():
            asked.set()
            await door.wait()
            raise PlacementError("gone again")

        moving = asyncio.create_task(desk.trainer.move(refuse))
        await asked.wait()
        await desk.kill()
        stepping = asyncio.create_task(desk.step(2))
        await until(lambda: desk.trainer.deaths)
        door.set()
        assert await stepping == (1, 2.0)
        assert not await moving

    with_trainer(tmp_path, scenario, first_rest_s=0.01)


def test_where_there_is_no_room_for_two_it_ends_before_another_is_made_from_its_save(tmp_path):
    async def scenario(desk):
        await desk.step(1)
        await desk.trainer.publish()
        first = await desk.pid()
        spawn = desk.trainer._spawn

        async def spawn_alone():
            with pytest.raises(ProcessLookupError):
                os.kill(first, 0)
            return await spawn()

        desk.trainer._spawn = spawn_alone
        await desk.trainer.restart()
        assert await desk.pid() != first
        assert await desk.step(2) == (2, 3.0)
        assert (desk.published(), desk.trainer.deaths, desk.warnings) == (["1:1", "1:1"], 0, [])

    with_trainer(tmp_path, scenario)


def test_where_it_cannot_move_it_stays(tmp_path):
    async def scenario(desk):
        await desk.step(1)
        first = await desk.pid()
        desk.unplaced = 1
        assert not await desk.trainer.move(desk.spawn)
        (tmp_path / "unreadable").touch()
        assert not await desk.trainer.move(desk.spawn)
        moves = "the trainer moves to its preferred pool"
        assert desk.warnings[:3] == [moves, "the trainer cannot move: every pool is full", moves]
        assert "unreadable" in desk.warnings[3]
        (tmp_path / "unreadable").unlink()
        assert await desk.step(2) == (2, 3.0)
        assert await desk.pid() == first

    with_trainer(tmp_path, scenario)


def test_killed_before_it_has_moved_it_goes_on_where_it_was_to_move_to(tmp_path):
    async def scenario(desk):
        await desk.step(1)
        desk.door.clear()
        moving = asyncio.create_task(desk.trainer.move(desk.spawn))
        await until(lambda: desk.asked == 2)
        await desk.kill()
        stepping = asyncio.create_task(desk.step(2))
        await until(lambda: desk.trainer.deaths)
        desk.door.set()
        assert await stepping == (2, 3.0)
        assert await moving
        assert desk.spawned == 2

    with_trainer(tmp_path, scenario)


def test_a_loaded_checkpoint_may_be_pruned(tmp_path):
    async def scenario(desk):
        await desk.step(5)
        await desk.trainer.save(str(tmp_path / "checkpoint"))
        assert await desk.trainer.load(str(tmp_path / "checkpoint")) == 1
        (tmp_path / "checkpoint" / "state.json").unlink()
        await desk.kill()
        assert await desk.step(1) == (2, 6.0)

    with_trainer(tmp_path, scenario)


def test_a_full_disk_costs_its_own_saves_not_the_run(tmp_path):
    async def scenario(desk):
        (tmp_path / "full").touch()
        assert [await desk.step(n) for n in (1, 2)] == [(1, 1.0), (2, 3.0)]
        assert [warning.split(":")[0] for warning in desk.warnings] == [
            "the trainer cannot save for itself"
        ] * 2
        await desk.kill()
        assert await desk.step(4) == (3, 7.0)

    with_trainer(tmp_path, scenario, save_every=1)


def test_it_waits_for_a_place_when_there_is_none(tmp_path):
    async def scenario(desk):
        await desk.step(1)
        desk.unplaced = 2
        await desk.kill()
        assert await desk.step(2) == (2, 3.0)
        assert desk.warnings[1:] == ["the trainer cannot be made now: every pool is full"]

    with_trainer(tmp_path, scenario, first_rest_s=0.01)


def test_it_gives_up_waiting_for_a_place(tmp_path):
    async def scenario(desk):
        desk.unplaced = 5
        await desk.kill()
        with pytest.raises(PlacementError, match="every pool is full"):
            await desk.step(2)

    with_trainer(tmp_path, scenario, first_rest_s=0.01, patience_s=0.0)


def test_a_batch_that_kills_it_again_and_again_ends_the_run(tmp_path):
    async def scenario(desk):
        (tmp_path / "deadly").touch()
        with pytest.raises(UserError, match="died 5 times in a row"):
            await desk.step(1)

    with_trainer(tmp_path, scenario)
