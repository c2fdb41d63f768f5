"""What no cluster with these pools could give a run, from the config alone."""

import pytest

from rollart.config import Config, TaskOptions
from rollart.config.checks import check_places
from rollart.config.options import RayOptions
from rollart.config.pools import PoolOptions
from rollart.errors import ConfigError
from rollart.training.options import TrainingOptions

TASKS = {"lake": TaskOptions(env="frozen_lake")}
TRAIN = PoolOptions(hardware="CPU", count=1, role="train")
SERVE = PoolOptions(hardware="CPU", count=2, role="rollout")


def make(ranks=1, **pools):
    return Config(
        tasks=TASKS,
        pools=pools,
        training=TrainingOptions(ranks=ranks),
        ray=RayOptions(address="local"),
    )


def refusal(config):
    with pytest.raises(ConfigError) as caught:
        check_places(config)
    return str(caught.value)


@pytest.mark.parametrize(
    "config",
    [
        make(cores_train=TRAIN, cores=SERVE),
        make(ranks=2),
        make(ranks=3, one=PoolOptions(hardware="CPU", count=4)),
        make(ranks=8, big=PoolOptions(hardware="H800", count=8), wide=SERVE),
        make(wide=PoolOptions(hardware="H20", count=12, tp=3, role="rollout"), one=TRAIN),
    ],
)
def test_what_fits_on_some_nodes_is_not_refused(config):
    check_places(config)


def test_more_ranks_than_their_pools_have_units_are_refused():
    assert refusal(make(ranks=2, cores_train=TRAIN, cores=SERVE)) == (
        "training.ranks = 2: each takes a unit of a pool that may train, and "
        "pools.cores_train has 1: lower it, or raise the count"
    )


def test_ranks_that_leave_no_room_for_engines_are_refused():
    pools = {
        "big": PoolOptions(hardware="H800", count=2),
        "wide": PoolOptions(hardware="H20", count=4, tp=2),
    }
    text = refusal(make(ranks=3, **pools))
    assert text.startswith("training.ranks = 3: so many leave too little for engines: wide-1 needs")


def test_pools_of_which_none_may_train_are_refused():
    assert refusal(make(cores=SERVE)) == (
        "pools = ['cores']: none of them may train: add one with role = \"train\", "
        "or leave a role out"
    )


def test_without_an_address_the_pools_are_this_machines():
    config = Config(tasks=TASKS, pools={"cores_train": TRAIN})
    assert refusal(config).startswith("pools.cores_train.role = 'train': this host")
