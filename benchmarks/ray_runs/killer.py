"""A killer: SIGKILL for engines, environment workers, trainers and whole nodes of a running run.

It knows every process of the run from the host that spawned it, and kills at steps drawn by a seed,
a random moment after the step was seen in the log. A node that was killed joins again a while
later.
"""

import contextlib
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.ray_runs.simulated import SimulatedCluster
from rollart.cluster.ray_host import RayHandle, RayHost
from rollart.plugins import ENGINE_ACTOR, ENV_ACTOR
from rollart.types import Json

KINDS = {ENGINE_ACTOR: "engine", ENV_ACTOR: "environments"}
"""What else a run spawns are ranks of its trainer."""
_AWAY_S = 3.0
"""How long a killed node stays away."""


class KnownHost(RayHost):
    """A host that remembers the processes it spawned, by what they are."""

    known: list[tuple[str, int]]

    async def spawn(
        self,
        target: str,
        options: Mapping[str, Json],
        *,
        own_process: bool = True,
        pool: str = "",
        asked: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> RayHandle:
        """Make an actor and remember its process."""
        handle = await super().spawn(
            target, options, own_process=own_process, pool=pool, asked=asked, env=env
        )
        self.known.append((KINDS.get(target, "trainer"), handle.pid))
        return handle


class Killer(threading.Thread):
    """Kills at random until it has killed so often."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        *,
        nodes: Mapping[str, Mapping[str, float]],
        log: Path,
        kills: int,
        steps: int,
    ) -> None:
        """Take the nodes it may kill and how each is started, and the run's log and length."""
        super().__init__(daemon=True)
        self._random = random.Random(7)
        self._cluster = cluster
        self._nodes = nodes
        self._log = log
        last = steps - max(2, steps // 10)
        self._moments = sorted(self._random.uniform(1, last) for _ in range(kills))
        self._returning: list[tuple[float, str]] = []
        self._read = 0
        self._steps = 0
        self.counts: Counter[str] = Counter()
        self.is_over = threading.Event()

    def run(self) -> None:
        """Kill, one after another, at the moments drawn."""
        for moment in self._moments:
            while not self.is_over.is_set() and self._step() < int(moment):
                self._let_return()
                time.sleep(0.1)
            time.sleep((moment % 1.0) * 2.0)
            if self.is_over.is_set():
                return
            self._kill()
        while self._returning and not self.is_over.is_set():
            self._let_return()
            time.sleep(0.1)

    def _kill(self) -> None:
        """Kill something that is there; try until something was."""
        while not self.is_over.is_set():
            kind = self._random.choice(("engine", "environments", "trainer", "node"))
            if kind == "node":
                if self._returning:
                    continue  # one node at a time
                name = self._random.choice(list(self._nodes))
                self._cluster.remove(name)
                self._returning.append((time.monotonic() + _AWAY_S, name))
                return self._note(f"node {name}", kind)
            alive = [pid for each, pid in KnownHost.known if each == kind and _is_alive(pid)]
            if alive:
                pid = self._random.choice(alive)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    return self._note(f"{kind} {pid}", kind)
            time.sleep(0.2)
        return None

    def _note(self, what: str, kind: str) -> None:
        self.counts[kind] += 1
        sys.stderr.write(f"kill {self.counts.total()} at step {self._step()}: {what}\n")

    def _let_return(self) -> None:
        for at_s, name in list(self._returning):
            if time.monotonic() >= at_s:
                self._returning.remove((at_s, name))
                self._cluster.add(name, **dict(self._nodes[name]))

    def _step(self) -> int:
        """Return how many steps the log tells of, reading only what is new."""
        with contextlib.suppress(OSError), self._log.open("rb") as log:
            log.seek(self._read)
            whole = log.read().rpartition(b"\n")[0]
            self._read += len(whole)
            self._steps += whole.count(b'"event":{"type":"StepFinished"')
        return self._steps


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
