"""The trainer's way home, and who counts as holding which place on it."""

import asyncio

import pytest
from checkout import ROOT

from rollart.cluster.ray_session import RayNode
from rollart.cluster.ray_spawner import RANK, Resources, TrainerMover, bind_ranks
from rollart.cluster.trainer_supervisor import TrainerSupervisor
from rollart.config import load_config
from rollart.errors import PlacementError

QUICKSTART = ROOT / "examples" / "quickstart.toml"
OPTIONS = [
    'pools.near={class="CPU",count=4,role="train",resource="near"}',
    'pools.far={class="CPU",count=4,role="rollout",resource="far"}',
    'affinity={train=["near","far"]}',
    "training.ranks=2",
]


def node(name, **resources):
    return RayNode(id=name, address="127.0.0.1", resources={"CPU": 4, **resources}, labels={})


class SavingTrainer:
    """Saves nothing."""

    async def save(self, directory):
        pass

    async def load(self, directory):
        pass

    async def close(self):
        pass


class Company:
    """A trainer of two ranks that only notes what becomes of it."""

    def __init__(self, directory, near):
        self.config = load_config(QUICKSTART, OPTIONS)
        self.resources = Resources(self.config, directory, [node("f", far=4), *near])
        self.said = []
        self.done = []
        self.error = None
        trainer = TrainerSupervisor(
            self.spawn, directory=directory / "trainer", save_every=9, warn=self.said.append
        )
        trainer.restart = self.restart
        self.mover = TrainerMover(self, trainer, warn=self.said.append)

    def bind(self):
        bind_ranks(self.config, self.resources)

    def see(self, near):
        self.resources.observe([node("f", far=4), node("n", near=near)])

    async def trainer(self, bindings):
        """Take the place of `Spawner.trainer`."""
        self.done.append(self.held())
        if self.error:
            raise self.error
        return SavingTrainer()

    async def spawn(self):
        return SavingTrainer()

    async def restart(self):
        self.done.append(self.held())
        self.bind()

    def held(self):
        bindings = self.resources.bindings("")
        return sorted((each.worker, each.actual) for each in bindings)


RANKS = [f"{RANK}0", f"{RANK}1"]
FAR = [(rank, "far") for rank in RANKS]
NEAR = [(rank, "near") for rank in RANKS]


def test_ranks_that_fit_at_home_beside_the_old_ones_hold_both_places_until_they_have_moved(
    tmp_path,
):
    company = Company(tmp_path, [])
    company.bind()
    assert not company.mover.is_due
    company.see(near=2)
    assert company.mover.is_due
    assert asyncio.run(company.mover.move())
    assert company.done == [[("next-trainer-0", "near"), ("next-trainer-1", "near"), *FAR]]
    assert company.held() == NEAR
    assert not company.mover.is_due


@pytest.mark.parametrize("room", [2, 3])
def test_where_some_ranks_are_at_home_all_end_before_they_are_made_again(tmp_path, room):
    company = Company(tmp_path, [node("n", near=1)])
    company.bind()
    assert company.held() == [(RANKS[0], "near"), (RANKS[1], "far")]
    company.see(near=room)
    assert company.mover.is_due
    assert asyncio.run(company.mover.move())
    beside = [("next-trainer-0", "near"), ("next-trainer-1", "near")] if room == 3 else []
    assert company.done == [[*beside, (RANKS[0], "near"), (RANKS[1], "far")]]
    assert company.held() == NEAR
    assert not company.mover.is_due


def test_ranks_that_cannot_move_stay_in_the_books_where_they_are(tmp_path):
    company = Company(tmp_path, [])
    company.bind()
    company.see(near=2)
    company.error = PlacementError("Ray did not start it")
    assert not asyncio.run(company.mover.move())
    assert company.held() == FAR
    assert company.mover.is_due
    assert company.said == [
        "the trainer moves to its preferred pool",
        "the trainer cannot move: Ray did not start it",
    ]
