"""Two tasks on two pools of a cluster that loses a node, gets it back, and is lost in the end.

The node that is lost holds an engine, the trainer and every environment worker.
"""

import re

import pytest

from benchmarks.fallback import NODE, lose_and_return
from benchmarks.ray_runs.watched import WatchedRun, served_since, steps
from rollart.cli import main
from rollart.observe.log import read_log
from rollart.observe.replay import replay, turns_served


@pytest.fixture(scope="module")
def run(cluster, tmp_path_factory):
    cluster.add("compute", **NODE)
    run = WatchedRun(tmp_path_factory.mktemp("cluster"), cluster.address)
    yield run
    run.end()


def test_a_run_keeps_to_its_pools_falls_back_returns_and_outlives_its_cluster(run, cluster, capsys):
    run.wait(lambda records: steps(records) >= 4, seconds=300)
    share = turns_served(read_log(run.directory / "events.jsonl"))
    assert sum(share["left"].values()) > 50
    assert share["left"]["compute"] / sum(share["left"].values()) >= 0.99
    assert share["right"]["bandwidth"] / sum(share["right"].values()) >= 0.99

    took = lose_and_return(run, cluster)
    assert took.keys() == {"continued_s", "stepped_s", "returned_s", "all_home_s"}
    served = served_since(run.records(), 0.0, domain_of=run.domain_of())
    pools = iter([pool for domain, pool, _ in served if domain == "left"])
    assert all(pool in pools for pool in ("compute", "bandwidth", "compute"))  # in this order

    cluster.remove_head()
    code, said = run.finish()
    assert code == 2
    assert "is lost;" in said
    assert f"continue with: rollart train --resume {run.directory} --address HOST:PORT" in said
    assert "Traceback" not in said
    assert "raylet" not in said
    proof = replay(run.directory)
    assert (proof["same_commands"], proof["lost"], proof["trained_twice"]) == (True, 0, 0)
    assert main(["pools", str(run.directory)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"compute-0 +compute > bandwidth +compute", shown)
    assert re.search(r"left +\d+ +(bandwidth|compute) ", shown)
