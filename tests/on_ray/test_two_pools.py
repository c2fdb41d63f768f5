"""Two tasks on two pools of a cluster that loses a node, gets it back, and is gone in the end."""

import re

import pytest
from cluster_run import ClusterRun, last_time, served_since, steps

from rollart.cli import main
from rollart.control.recording import decode_domains
from rollart.observe.log import read_log
from rollart.replay import replay, turns_served


@pytest.fixture(scope="module")
def run(cluster, tmp_path_factory):
    run = ClusterRun(tmp_path_factory.mktemp("cluster"), cluster.address)
    yield run
    if run.process.poll() is None:
        run.process.kill()
        run.process.wait()


def served(run, domain, pool, *, since_s):
    """Return a question: when did a pool complete a turn of a domain's later attempts?"""

    def ask(records):
        parts = read_log(run.directory / "events.jsonl")
        domain_of = decode_domains(parts[0].header.rules)
        found = served_since(records, since_s, domain_of=domain_of)
        return next((time_s for each, by, time_s in found if (each, by) == (domain, pool)), None)

    return ask


def test_a_run_keeps_to_its_pools_falls_back_returns_and_outlives_its_cluster(run, cluster, capsys):
    run.wait(lambda records: steps(records) >= 8, seconds=300)
    share = turns_served(read_log(run.directory / "events.jsonl"))
    assert sum(share["left"].values()) > 100
    assert share["left"]["compute"] / sum(share["left"].values()) >= 0.99
    assert share["right"]["bandwidth"] / sum(share["right"].values()) >= 0.99

    cluster.remove("compute")
    lost_s = last_time(run.records())
    run.wait(served(run, "left", "bandwidth", since_s=lost_s))
    cluster.add("compute", cpus=0, H800=1)
    back_s = last_time(run.records())
    run.wait(served(run, "left", "compute", since_s=back_s))
    last = steps(run.records())
    run.wait(lambda records: steps(records) >= last + 5)

    cluster.remove_head()
    code, said = run.finish()
    assert code == 2
    assert "is gone;" in said
    assert f"go on with: rollart train --resume {run.directory} --address HOST:PORT" in said
    assert "Traceback" not in said
    assert "raylet" not in said
    proof = replay(run.directory)
    assert (proof["same_commands"], proof["lost"], proof["trained_twice"]) == (True, 0, 0)
    assert main(["pools", str(run.directory)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"compute-0 +compute > bandwidth +compute", shown)
    assert re.search(r"left +\d+ +(bandwidth|compute) ", shown)
