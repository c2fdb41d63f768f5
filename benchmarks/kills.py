"""Kills in one run: engines, environment workers, training ranks and whole nodes, with SIGKILL.

The quickstart on a simulated cluster: a head, a node for the compute class, one for the bandwidth
class and one for two training ranks and environments. At random times something that runs is
killed. The run must finish, replay must prove that nothing was lost or trained twice, and it must
have learned what the same run learns when nothing is killed.

Plain: at most 25 kills in 60 optimizer steps. `--full`: 50 in 100. `--quick`: 12 in 40.
"""

import contextlib
import io
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.live_runs.timed import ROOT, say, warm_model
from benchmarks.ray_runs.killer import Killer, KnownHost
from benchmarks.ray_runs.simulated import SimulatedCluster
from rollart.cli.bench import Effort
from rollart.cluster import ray_spawner
from rollart.config import Config, load_config
from rollart.config.options import RayOptions
from rollart.observe.replay import replay
from rollart.pipelines.agentic import train

NAME = "kills"
NODES = {
    "compute": {"cpus": 2, "H800": 1},
    "bandwidth": {"cpus": 2, "H20": 1},
    "hosts": {"cpus": 2, "host": 4},
}


def make_config(directory: Path, address: str, *, steps: int) -> Config:
    pools = [
        'pools.compute={class="H800",count=1,role="rollout"}',
        'pools.bandwidth={class="H20",count=1,role="rollout"}',
        'pools.hosts={class="CPU",count=4,role="train",resource="host"}',
    ]
    config = load_config(
        ROOT / "examples" / "quickstart.toml",
        [
            f"model.path={str(warm_model())!r}",
            f"run.steps={steps}",
            "run.evaluate_every=0",
            "run.samples=0",
            "retry.give_up_after=100000",
            f"ray.address={address!r}",
            "ray.environment_workers=2",
            "training.ranks=2",
            *pools,
        ],
    )
    return replace(config, run=replace(config.run, directory=str(directory)))


def finish(config: Config) -> dict[str, Any]:
    """Run to the end; return the summary and what replay proves."""
    directory = Path(config.run.directory)
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = train(config)
    assert code == 0, said.getvalue()[-3000:]
    summary = json.loads((directory / "summary.json").read_text())
    return {"summary": summary, "proof": replay(directory)}


def run(*, effort: Effort) -> dict[str, object]:
    steps, kills = {"quick": (40, 12), "plain": (60, 25), "full": (100, 50)}[effort]
    ray_spawner.RayHost = KnownHost  # type: ignore[misc]
    with tempfile.TemporaryDirectory(prefix="rollart-kills-") as name:
        directory = Path(name)
        with SimulatedCluster(host=4) as cluster:
            for node, resources in NODES.items():
                cluster.add(node, **resources)
            killed = directory / "killed"
            config = make_config(killed, cluster.address, steps=steps)
            KnownHost.known = []
            killer = Killer(
                cluster, nodes=NODES, log=killed / "events.jsonl", kills=kills, steps=steps
            )
            killer.start()
            try:
                ended = finish(config)
            finally:
                killer.is_over.set()
                killer.join()
        say(f"killed: {dict(killer.counts)} {ended['proof']}")
        calm_config = make_config(directory / "calm", "local", steps=steps)
        calm = finish(replace(calm_config, pools={}, ray=RayOptions()))
    summary, proof = ended["summary"], ended["proof"]
    return {
        "kills": killer.counts.total(),
        "lost": proof["lost"],
        "trained_twice": proof["trained_twice"],
        "final_success": summary["success_after"],
        "success_before": summary["success_before"],
        "final_success_without_kills": calm["summary"]["success_after"],
        "kills_of": dict(killer.counts),
        "ended": proof["ended"],
        "training_s": summary["seconds"]["training"],
        "training_s_without_kills": calm["summary"]["seconds"]["training"],
        "steps": summary["steps"],
    }
