"""Workers of a run on the nodes of a cluster: beside each other, put back, and written down."""

import json

import pytest
from checkout import ROOT

from rollart.cluster.ray_host import PACKED, Packed
from rollart.cluster.ray_session import RayNode
from rollart.cluster.ray_spawner import FILE, Resources
from rollart.config import load_config
from rollart.config.places import WorkerPlace
from rollart.control.placement import Needs
from rollart.errors import PlacementError

QUICKSTART = ROOT / "examples" / "quickstart.toml"
POOLS = [
    'pools.near={class="CPU",count=1,role="train",resource="near"}',
    'pools.far={class="CPU",count=2,role="rollout",resource="far"}',
]
RANK = WorkerPlace(preferred=("near", "far"), needs=Needs())


def node(name, **resources):
    return RayNode(id=name, address="127.0.0.1", resources={"CPU": 4, **resources}, labels={})


NEAR, FAR = node("n", near=1), node("f", far=2)


@pytest.fixture
def resources(tmp_path):
    return Resources(load_config(QUICKSTART, POOLS), tmp_path, [NEAR, FAR])


def test_a_worker_without_units_goes_beside_another_and_follows_it(resources):
    with pytest.raises(PlacementError, match="lent belongs beside rank, which is not bound now"):
        resources.bind_beside("lent", "rank")
    resources.bind("rank", RANK)
    assert resources.bind_beside("lent", "rank").node == "n"
    assert resources.is_beside("lent", "rank")
    assert not resources.is_better("lent")
    assert resources.observe([FAR]) == ("rank", "lent")
    with pytest.raises(PlacementError, match="lent belongs beside rank"):
        resources.bind_beside("lent", "rank")
    assert resources.bind("rank", RANK).node == "f"
    assert resources.bind_beside("lent", "rank").node == "f"
    assert (resources.is_beside("lent", "rank"), resources.is_better("rank")) == (True, False)
    resources.observe([NEAR, FAR])
    assert resources.is_better("rank")
    resources.bind("rank", RANK)
    assert not resources.is_beside("lent", "rank")
    assert resources.is_beside("lent", "nobody")


def test_workers_that_did_not_get_away_are_put_back(resources, tmp_path):
    resources.observe([FAR])
    resources.bind("rank-0", RANK)
    before = resources.bindings("rank-")
    resources.observe([NEAR, FAR])
    assert resources.bind("rank-0", RANK).actual == "near"
    resources.put_back(before, RANK)
    assert [each.actual for each in resources.bindings("rank-")] == ["far"]
    assert resources.is_better("rank-0")
    rows = json.loads((tmp_path / FILE).read_text())
    held = [row["actual"] for row in rows if row["until_s"] is None]
    assert (held, len(rows)) == (["far"], 3)


def test_workers_with_devices_are_shown_as_many_gpus_as_they_have_units(tmp_path):
    labelled = 'class="H800",count=4,tp=2,role="rollout",resource="GPU",labels={kind="h800"}'
    named = 'class="H20",count=8,role="rollout",cpus=3'
    pools = [f"pools.labelled={{{labelled}}}", f"pools.named={{{named}}}", POOLS[0]]
    a, b, c = (letter * 56 for letter in "abc")  # as long as Ray's own
    nodes = [
        RayNode(id=a, address="1", resources={"CPU": 8, "GPU": 4}, labels={"kind": "h800"}),
        RayNode(id=b, address="2", resources={"CPU": 8, "GPU": 1, "H20": 8}, labels={}),
        RayNode(id=c, address="3", resources={"CPU": 8, "H20": 1, "near": 1}, labels={}),
    ]
    resources = Resources(load_config(QUICKSTART, pools), tmp_path, nodes)

    def asked(worker, pool):
        binding = resources.bind(worker, WorkerPlace(preferred=(pool,), needs=Needs()))
        wanted = resources.asked(binding)
        return binding.node, wanted["num_gpus"], wanted["num_cpus"], wanted["resources"]

    place = WorkerPlace(preferred=("labelled",), needs=Needs(units=2))
    packed = resources.asked(resources.bind("engine", place))[PACKED]
    assert packed == Packed(node=a, units=({"GPU": 1}, {"GPU": 1}))
    on_named = sorted((asked("one", "named"), asked("two", "named")), key=lambda each: each[0])
    assert on_named == [(b, 1, 3, {"H20": 1}), (c, 0, 3, {"H20": 1})]
    assert asked("rank", "near") == (c, 0, 0, {"near": 1})
    assert asked("more", "named") == (a, 1, 0, {})
