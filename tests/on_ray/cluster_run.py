"""A run on the simulated cluster, as a user starts it, watched through its log."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from rollart.events import EngineJoined, Launch, RunStarted, StepFinished, TrajectoryFinished
from rollart.observe.log import read_log

ENVS = Path(__file__).resolve().parents[1] / "build"

CONFIG = f"""
[run]
name = "two_pools"
steps = 100000
environments = 16
checkpoint_every = 5
evaluate_episodes = 0
samples = 0
import_paths = ["{ENVS}"]

[model]
path = "tiny:0.2M"
warm_start = false

[pools.compute]
class = "H800"
count = 1
role = "rollout"

[pools.bandwidth]
class = "H20"
count = 1
role = "rollout"

[pools.hosts]
class = "CPU"
count = 4
role = "train"

[affinity]
tasks = {{ left = ["compute", "bandwidth"], right = ["bandwidth", "compute"] }}

[tasks.left]
env = "letter_env:Letters"
max_turns = 3
max_tokens = 64

[tasks.right]
env = "letter_env:Letters"
max_turns = 3
max_tokens = 64

[sampling]
max_tokens = 4

[batching]
groups_per_step = 4
group_size = 4

[training]
threads = 1

[engine.torch]
threads = 1

[retry]
backoff_s = 0.05
backoff_max_s = 0.2

[ray]
environment_workers = 2
"""


class ClusterRun:
    """`rollart train` in a process of its own."""

    def __init__(self, directory, address):
        file = directory / "two_pools.toml"
        file.write_text(CONFIG)
        self.directory = directory / "run"
        self.output = directory / "output.txt"
        overrides = [f"run.directory='{self.directory}'", f"model.cache='{directory / 'cache'}'"]
        program = "from rollart.cli import main; raise SystemExit(main())"
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-c", program, "train", file, *overrides, "--address", address],
                stdout=output,
                stderr=output,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def records(self):
        try:
            return [
                each for part in read_log(self.directory / "events.jsonl") for each in part.records
            ]
        except Exception:
            return []

    def wait(self, is_so, *, seconds=240):
        """Wait until the log says something; return what `is_so` made of it."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"the run ended: {self.output.read_text()[-3000:]}")
            found = is_so(self.records())
            if found:
                return found
            time.sleep(0.5)
        raise AssertionError(f"not within {seconds} s: {self.output.read_text()[-3000:]}")

    def finish(self, *, seconds=60):
        """Wait for the run's end; return its exit code and what it said."""
        code = self.process.wait(seconds)
        return code, self.output.read_text()

    def interrupt(self):
        self.process.send_signal(signal.SIGINT)


def steps(records):
    return sum(isinstance(each.event, StepFinished) for each in records)


def last_time(records):
    return records[-1].time_s if records else 0.0


def served_since(records, since_s, *, domain_of):
    """Yield domain, pool and time of each turn-serving engine of attempts launched since."""
    pools, tasks = {}, {}
    for record in records:
        match record.event:
            case RunStarted(engines=engines):
                pools |= {engine.id: engine.pool for engine in engines}
            case EngineJoined(engine=engine):
                pools[engine.id] = engine.pool
            case TrajectoryFinished(info=info) if info.id in tasks:
                for engine in info.served:
                    yield domain_of(tasks[info.id]), pools[engine], record.time_s
            case _:
                pass
        if record.time_s >= since_s:
            tasks |= {each.id: each.task for each in record.commands if isinstance(each, Launch)}
