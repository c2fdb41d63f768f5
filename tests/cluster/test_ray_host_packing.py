"""Engines of several units: reserved together on one node, and given back with the engine."""

import asyncio
import os
import signal

import pytest
import ray
from checkout import ROOT
from conditions import BOUND_S, wait_until
from drivers import in_a_driver
from ray.util.placement_group import placement_group_table

from rollart.cluster.ray_host import RayHost
from rollart.cluster.ray_session import nodes
from rollart.cluster.ray_spawner import Resources
from rollart.config import load_config
from rollart.config.places import engine_places
from rollart.errors import PlacementError

ECHO = "host_actors:Echo"
QUICKSTART = ROOT / "examples" / "quickstart.toml"
POOLS = [
    'pools.pairs={class="H800",count=4,tp=2,cpus=1,role="rollout",resource="far"}',
    'pools.hosts={class="CPU",count=1,role="train"}',
]


def groups():
    return [(each["state"], each["strategy"]) for each in placement_group_table().values()]


def pack_engines(tmp_path):
    config = load_config(QUICKSTART, POOLS)
    resources = Resources(config, tmp_path, nodes())
    places = engine_places(config)
    assert list(places) == ["pairs-0", "pairs-1"]
    bindings = [resources.bind(name, place) for name, place in places.items()]

    async def run():
        host = RayHost(placing_s=2 * BOUND_S)
        first = await host.spawn(ECHO, {"greeting": "hi"}, asked=resources.asked(bindings[0]))
        assert await first.call("greet", "you") == "hi, you"
        (made,) = placement_group_table().values()
        assert (made["state"], made["strategy"]) == ("CREATED", "STRICT_PACK")
        assert made["bundles"] == {0: {"far": 1, "CPU": 1}, 1: {"far": 1}}
        assert set(made["bundles_to_node_id"].values()) == {bindings[0].node}
        second = await host.spawn(ECHO, {}, asked=resources.asked(bindings[1]))
        impatient = RayHost(placing_s=1)
        with pytest.raises(PlacementError, match=r"within 1 s on node \w+ with 2 far, 1 CPU"):
            await impatient.spawn(ECHO, {}, asked=resources.asked(bindings[1]))
        await first.close()
        os.kill(second.pid, signal.SIGKILL)
        await second.close()
        gone = [("REMOVED", "STRICT_PACK")] * 3
        wait_until(lambda: groups() == gone)
        wait_until(lambda: ray.available_resources().get("far") == 4)

    asyncio.run(run())


def test_an_engine_of_several_units_has_them_on_one_node_and_gives_all_back(cluster, tmp_path):
    in_a_driver(f"{__name__}:pack_engines", cluster.address, tmp_path)
