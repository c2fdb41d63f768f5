import json
from dataclasses import dataclass, field

import pytest
from checkout import ROOT

from rollart.cli import main
from rollart.cli.pools import planned, render, render_served
from rollart.config import load_config
from rollart.control.placement import Bindings, Needs, PoolCapacity
from rollart.errors import PlacementError

EXAMPLES = ROOT / "examples"
TWO = str(EXAMPLES / "two_pools.toml")


def shown(capsys, *argv: str) -> str:
    assert main(["pools", *argv]) == 0
    return capsys.readouterr().out


def refusal(capsys, *argv: str) -> str:
    assert main(["pools", *argv]) == 2
    return capsys.readouterr().err.removeprefix("error: ").strip()


def test_a_configs_pools_preferences_and_places_are_shown(capsys):
    assert (
        shown(capsys, TWO)
        == """\
compute    1 x H800  80 GB  rolls out
bandwidth  1 x H20   96 GB  rolls out
hosts      4 x CPU   9 GB   trains

train         hosts
generation    bandwidth > compute
environments  hosts > compute > bandwidth
rewards       local
task lake     compute > bandwidth
task sums     bandwidth > compute

pool       class  units  alive  used  workers
compute    H800   1      1      1     compute-0
bandwidth  H20    1      1      1     bandwidth-0
hosts      CPU    4      4      1     rank-0
"""
    )


def test_without_pools_there_is_this_machine(capsys):
    text = shown(capsys, str(EXAMPLES / "quickstart.toml"), "run.mode=sync")
    assert text.startswith("local  1 x torch  this machine\n")
    assert 'task lake     any engine: run.mode = "sync" routes by load\n' in text


def test_a_task_without_affinity_goes_to_any_engine(capsys):
    assert "task swe         any engine\n" in shown(capsys, str(EXAMPLES / "plan.toml"))


def test_a_model_too_large_for_every_pool_is_one_message(capsys):
    overrides = ["model.path=x", "model.shape=Qwen3-235B-A22B", "engine.torch.device=cuda"]
    message = refusal(capsys, TWO, *overrides)
    assert message.startswith("compute-0 needs 1 unit on one node with 470.2 GB together; no pool")
    assert message.endswith("compute offers 1 x 80 = 80 GB; bandwidth offers 1 x 96 = 96 GB")


def test_rows_name_few_workers_and_all_that_are_not_at_home():
    pools = [
        PoolCapacity(name=name, hardware="H20", units=8, memory_gb_per_unit=96.0)
        for name in ("a", "b")
    ]
    bindings = Bindings(pools)
    for number in range(6):
        bindings.bind(f"e{number}", preferred=("a",), needs=Needs(), now=0.0)
    bindings.bind("lost", preferred=("b",), needs=Needs(units=8), now=0.0)
    bindings.observe({"a": 8}, now=1.0)
    bindings.bind("x", preferred=("b",), needs=Needs(), now=1.0)
    assert render(bindings.table()) == (
        "pool  class  units  alive  used  workers\n"
        "a     H20    8      8      7     e0, e1, e2, e3, and 2 more, x (prefers b)\n"
        "b     H20    8      0      0     lost (lost)"
    )


def test_the_bindings_of_a_run_are_shown_in_the_order_they_began(tmp_path, capsys):
    rows = [
        {"worker": "a", "preferred": ["h", "g"], "actual": "g", "node": "n", "since_s": 9.0,
         "until_s": None},
        {"worker": "a", "preferred": ["h", "g"], "actual": "h", "node": "m", "since_s": 0.5,
         "until_s": 8.25},
    ]  # fmt: skip
    (tmp_path / "bindings.json").write_text(json.dumps(rows))
    assert (
        shown(capsys, str(tmp_path))
        == """\
worker  preferred  actual  from   to
a       h > g      h       0.5 s  8.2 s
a       h > g      g       9.0 s  the end

2 bindings, 1 of them not in the pool that was preferred
"""
    )
    assert "a run that was made takes no overrides" in refusal(capsys, str(tmp_path), "run.seed=1")


@pytest.mark.parametrize("text", ["", "[{}]", "[1]", '[{"preferred": [], "x": 1}]'])
def test_bindings_that_cannot_be_read_are_one_message(text, tmp_path, capsys):
    (tmp_path / "bindings.json").write_text(text)
    assert "bindings.json: cannot be read as bindings" in refusal(capsys, str(tmp_path))


def test_a_run_on_one_machine_has_none(tmp_path, capsys):
    assert "only runs on a cluster bind workers" in refusal(capsys, str(tmp_path))


def test_the_share_of_turns_that_each_pool_completed_is_shown():
    served = {"sums": {"bandwidth": 3}, "lake": {"bandwidth": 1, "compute": 199}, "none": {}}
    assert render_served(served).splitlines() == [
        "task domain  turns  completed by",
        "lake         200    compute 99.5%, bandwidth 0.5%",
        "none         0      -",
        "sums         3      bandwidth 100.0%",
    ]


@dataclass(frozen=True)
class Machine:
    id: str
    resources: dict[str, float]
    labels: dict[str, str] = field(default_factory=dict)


def test_what_a_cluster_has_now_decides_where_workers_would_be():
    config = load_config(TWO, [])
    nodes = [Machine("a", {"H20": 1.0, "CPU": 4.0}), Machine("b", {"CPU": 2.0, "H800": 1.0})]
    rows = {row.name: row for row in planned(config, nodes).table()}
    assert (rows["compute"].alive, rows["bandwidth"].alive, rows["hosts"].alive) == (1, 1, 4)
    with pytest.raises(PlacementError, match="every pool that could take it is full"):
        planned(config, nodes[:1])
