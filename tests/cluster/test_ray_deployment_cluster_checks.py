"""What cannot run on a cluster is said before anything is made there."""

from dataclasses import dataclass

import pytest
from checkout import ROOT

from rollart.cluster.ray_session import check_cluster, cluster_lost
from rollart.config import load_config
from rollart.errors import ConfigError


@dataclass(frozen=True)
class Machine:
    address: str


QUICKSTART = ROOT / "examples" / "quickstart.toml"
ONE = [Machine("10.0.0.1"), Machine("10.0.0.1")]
TWO = [Machine("10.0.0.1"), Machine("10.0.0.2")]


def make(*overrides):
    return load_config(QUICKSTART, list(overrides))


def test_shared_memory_is_for_one_machine():
    check_cluster(make(), ONE)
    check_cluster(make('weights.store="ray"'), TWO)
    with pytest.raises(ConfigError) as caught:
        check_cluster(make(), TWO)
    assert str(caught.value) == (
        "weights.store = 'shared_memory': 2 machines share no memory: use weights.store = \"ray\""
    )


def test_what_needs_one_process_is_refused():
    with pytest.raises(ConfigError) as caught:
        check_cluster(make('weights.store="memory"'), ONE)
    assert caught.value.field == "weights.store"


def test_a_cluster_that_is_gone_leaves_a_checkpoint_and_how_to_go_on(tmp_path):
    assert str(cluster_lost("h:1", tmp_path)) == (
        "the Ray cluster at h:1 is lost, and there was no checkpoint yet: "
        "run.checkpoint_every says how often one is written"
    )
    kept = tmp_path / "checkpoints" / "step-000004"
    kept.mkdir(parents=True)
    (kept / "run.json").write_text("{}")
    assert str(cluster_lost("h:1", tmp_path)) == (
        f"the Ray cluster at h:1 is lost; {kept} is kept. When there is a cluster again, "
        f"continue with: rollart train --resume {tmp_path} --address HOST:PORT"
    )
