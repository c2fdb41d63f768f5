"""A run of two tasks on a simulated cluster, started as a user would and watched through its log.

Task `left` prefers the compute class and `right` the bandwidth class, each with the other in its
place. Trainer and environment workers prefer pool `near`, which may be on the same node as an
engine, and fall back to `far`.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rollart.control.snapshot import decode_domains
from rollart.events import (
    EngineJoined,
    Launch,
    RunStarted,
    StepFinished,
    TrajectoryBorn,
    TrajectoryCancelled,
    TrajectoryFailed,
    TrajectoryFinished,
)
from rollart.observe.log import Record, decode_record, is_header, read_log
from rollart.types import TrajectoryId

ROOT = Path(__file__).resolve().parents[2]
Found = TypeVar("Found")
_LOOK_S = 0.5
_GLANCE_S = 0.005

CONFIG = f"""
[run]
name = "two_pools"
steps = 100000
environments = 16
checkpoint_every = 5
evaluate_episodes = 0
samples = 0
import_paths = ["{ROOT}"]

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

[pools.near]
class = "CPU"
resource = "near"
count = 4

[pools.far]
class = "CPU"
resource = "far"
count = 4

[affinity]
tasks = {{ left = ["compute", "bandwidth"], right = ["bandwidth", "compute"] }}
train = ["near", "far"]
environments = ["near", "far"]
generation = ["bandwidth", "compute"]

[tasks.left]
env = "benchmarks.ray_runs.letters:Letters"
max_turns = 3
max_tokens = 64

[tasks.right]
env = "benchmarks.ray_runs.letters:Letters"
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

WITHOUT_POOLS = CONFIG[: CONFIG.index("[pools.compute]")] + CONFIG[CONFIG.index("[tasks.left]") :]
"""The same with an engine, the trainer and environment workers anywhere."""


class WatchedRun:
    """`rollart train` in a process of its own."""

    def __init__(
        self, directory: Path, address: str, *overrides: str, config: str = CONFIG
    ) -> None:
        file = directory / "two_pools.toml"
        file.write_text(config)
        self.directory = directory / "run"
        self.output = directory / "output.txt"
        self._records: list[Record] = []
        self._read_bytes = 0
        places = [f"run.directory='{self.directory}'", f"model.cache='{directory / 'cache'}'"]
        program = "from rollart.cli import main; raise SystemExit(main())"
        command = [sys.executable, "-c", program, "train", str(file), *places, *overrides]
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [*command, "--address", address],
                stdout=output,
                stderr=output,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
            )

    def records(self) -> list[Record]:
        """Return what the log says so far; only what is new is read."""
        try:
            with (self.directory / "events.jsonl").open("rb") as file:
                file.seek(self._read_bytes)
                whole = file.read().rpartition(b"\n")[0]
        except FileNotFoundError:
            return []
        if whole:
            self._read_bytes += len(whole) + 1
            lines = whole.split(b"\n")
            self._records += [decode_record(line) for line in lines if not is_header(line)]
        return self._records

    def now(self) -> float:
        """Return the time by the run's clock: that of an event it writes at this moment."""
        log = self.directory / "events.jsonl"
        size = log.stat().st_size
        while log.stat().st_size == size:  # it is flushed about once a second
            time.sleep(_GLANCE_S)
        with log.open("rb") as file:
            file.seek(size)
            line = file.read().rpartition(b"\n")[0].rpartition(b"\n")[2]
        return float(json.loads(line)["t"])

    def domain_of(self) -> Callable[[int], str]:
        """Return what tells the domain of a task."""
        return decode_domains(read_log(self.directory / "events.jsonl")[0].header.rules)

    def wait(self, is_so: Callable[[Sequence[Record]], Found], *, seconds: float = 240.0) -> Found:
        """Wait until the log says something; return what `is_so` made of it."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"the run ended: {self.said()}")
            found = is_so(self.records())
            if found:
                return found
            time.sleep(_LOOK_S)
        raise AssertionError(f"not within {seconds} s: {self.said()}")

    def said(self) -> str:
        """Return the end of what it wrote."""
        return self.output.read_text()[-3000:]

    def bindings(self, prefix: str) -> list[Mapping[str, Any]]:
        """Return where the workers are that still hold a place, by how their names begin."""
        rows = json.loads((self.directory / "bindings.json").read_text())
        return [row for row in rows if row["until_s"] is None and row["worker"].startswith(prefix)]

    def finish(self, *, seconds: float = 60.0) -> tuple[int, str]:
        """Wait for the run's end; return its exit code and what it said."""
        code = self.process.wait(seconds)
        return code, self.output.read_text()

    def interrupt(self) -> None:
        """Ask it to end in order."""
        self.process.send_signal(signal.SIGINT)

    def end(self) -> None:
        """End it at once, if it has not ended."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def steps(records: Sequence[Record]) -> int:
    """Return how many steps were made."""
    return sum(isinstance(each.event, StepFinished) for each in records)


def step_time(records: Sequence[Record], *, since_s: float) -> float:
    """Return when the second step after a time was made, as one may have been on its way; or 0."""
    times = [each.time_s for each in records if isinstance(each.event, StepFinished)]
    later = [at_s for at_s in times if at_s > since_s]
    return later[1] if len(later) > 1 else 0.0


def served_since(
    records: Sequence[Record], since_s: float, *, domain_of: Callable[[int], str]
) -> Iterator[tuple[str, str, float]]:
    """Yield domain, pool and time of each turn-serving engine of attempts launched since."""
    pools: dict[str, str] = {}
    tasks: dict[TrajectoryId, int] = {}
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


def continued(records: Sequence[Record], since_s: float) -> dict[TrajectoryId, float | None]:
    """Return when each attempt under way at a time was served again, here or by its next try.

    One whose group ended without it needs no further turn and is left out.
    """
    seats: dict[TrajectoryId, tuple[int, int]] = {}
    under_way: dict[TrajectoryId, float | None] = {}
    for record in records:
        event = record.event
        match event:
            case TrajectoryFinished(info=info):
                id_, is_end = info.id, True
            case TrajectoryFailed(id=id_) | TrajectoryCancelled(id=id_):
                is_end = True
            case TrajectoryBorn(id=id_):
                is_end = False
            case _:
                id_, is_end = TrajectoryId(-1), False
        if record.time_s <= since_s:
            if is_end:
                under_way.pop(id_, None)
        elif isinstance(event, TrajectoryCancelled):
            for each in [each for each in under_way if seats[each] == seats[id_]]:
                del under_way[each]
        elif isinstance(event, TrajectoryBorn | TrajectoryFinished):
            for each, at_s in under_way.items():
                if at_s is None and seats[each] == seats[id_]:
                    under_way[each] = record.time_s
        for command in record.commands:
            if isinstance(command, Launch):
                seats[command.id] = command.group, command.member
                if record.time_s <= since_s:
                    under_way[command.id] = None
    return under_way
