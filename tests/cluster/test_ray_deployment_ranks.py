"""Two training ranks on a cluster: they train as one, and one that dies is no end of the run."""

import json
import os
import signal
from pathlib import Path
from unittest.mock import patch

from drivers import alone_in_a_driver

from benchmarks.ray_runs.killer import KnownHost
from benchmarks.ray_runs.watched import WITHOUT_POOLS
from rollart.cluster import ray_spawner
from rollart.config import load_config
from rollart.events import StepFinished
from rollart.observe.log import EventLog
from rollart.observe.replay import replay
from rollart.pipelines.agentic import train

STEPS = 12


def lose_a_rank(address: str, directory: str) -> None:
    """Train over two ranks and kill the second one's process after the first step."""
    place = Path(directory)
    file = place / "ranks.toml"
    file.write_text(WITHOUT_POOLS)
    overrides = [
        f"run.steps={STEPS}",
        f"run.directory='{place / 'run'}'",
        f"model.cache='{place / 'cache'}'",
        f"ray.address='{address}'",
        "ray.environment_workers=1",
        "ray.spare_workers=0",
        "training.ranks=2",
    ]
    ray_spawner.RayHost = KnownHost
    KnownHost.known = []
    append, steps = EventLog.append, list[StepFinished]()

    def append_and_kill(self, now, event, commands) -> None:
        append(self, now, event, commands)
        if isinstance(event, StepFinished) and not steps:
            steps.append(event)
            os.kill(ranks()[1], signal.SIGKILL)

    with patch.object(EventLog, "append", append_and_kill):
        assert train(load_config(file, overrides)) == 0
    assert len(ranks()) == 4
    proof = replay(place / "run")
    assert (proof["same_commands"], proof["lost"], proof["trained_twice"]) == (True, 0, 0)
    assert json.loads((place / "run" / "summary.json").read_text())["steps"] == STEPS


def ranks() -> list[int]:
    """Return the processes of all ranks there were."""
    return [pid for kind, pid in KnownHost.known if kind == "trainer"]


def test_a_run_of_two_ranks_goes_on_when_one_is_killed(cluster, tmp_path):
    said = alone_in_a_driver(f"{__name__}:lose_a_rank", cluster.address, str(tmp_path))
    assert "the trainer is lost; starting another" in said
