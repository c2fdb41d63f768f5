"""Affinity against either hardware class alone, at equal cost, in trajectories a second.

Two classes of engines, slowed by declared throttles in the proportions of the paper's hardware
table: the compute class has 6.7 times the operations, 0.84 times the bandwidth and 2.85 times the
cost of the bandwidth class. Reading a prompt takes time by operations, a decoding step by bandwidth
whatever its batch, as the weights are read once. Two tasks, half of the trajectories each: one
reads much and writes little, one reads little and writes much.

Sides: 7 of the compute class (cost 19.95), 20 of the bandwidth class (20), and both with each task
on the class that suits it, 5 and 5 (19.25). The controller, router, proxies and environment workers
are the real ones; the engines sleep in place of computing. A rate is twice that of the task with
the fewer trajectories, so that no side gains by what the other task is ahead in a short stretch.

Plain: 3 rounds of 12 s a side after 8 s of warm-up. `--full`: 5 of 20 s after 10 s. `--quick`: 1
of 10 s after 8 s.
"""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.ray_runs.free_parts import STOP, make_proxy, make_worker, setup
from benchmarks.ray_runs.pumping import Counted, Pump
from rollart.cli.bench import Effort
from rollart.clock import SystemClock
from rollart.control.routing import Router, Routing
from rollart.control.task_order import TaskKind, TaskMix
from rollart.inference.scripted import ScriptedEngine
from rollart.ports import Array
from rollart.rollout.engine_client import EngineClient
from rollart.rollout.env_worker import Ends
from rollart.types import Completion, EngineId, EngineInfo, Request, TrajectoryId, Version

NAME = "placement"
SLOTS = 512
_ROWS = 32
_TOKENS_AT_ONCE = 10
READING = {"turns": 4, "observation": "r" * 500, "sampled": 20}
WRITING = {"turns": 1, "observation": "w" * 50, "sampled": 400}
MIX = TaskMix(
    [TaskKind(name="reading", domain="reading"), TaskKind(name="writing", domain="writing")],
    seed=1,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareClass:
    """What an engine on it takes."""

    cost: float
    read_s: float
    """Seconds to read one token of a prompt."""
    step_s: float
    """Seconds of one decoding step."""


BANDWIDTH = HardwareClass(cost=1.0, read_s=1 / 5000, step_s=0.0035)
COMPUTE = HardwareClass(cost=2.85, read_s=BANDWIDTH.read_s / 6.7, step_s=BANDWIDTH.step_s / 0.84)
CLASSES = {"compute": COMPUTE, "bandwidth": BANDWIDTH}
AFFINITY = {"reading": ("compute", "bandwidth"), "writing": ("bandwidth", "compute")}
SIDES = {
    "compute_only": {"compute": 7},
    "bandwidth_only": {"bandwidth": 20},
    "affinity": {"compute": 5, "bandwidth": 5},
}


class ThrottledEngine:
    """A scripted engine that takes as long as its hardware would."""

    def __init__(self, hardware: HardwareClass) -> None:
        self._engine = ScriptedEngine(_write, tokens_per_step=_TOKENS_AT_ONCE, rows=_ROWS)
        self._hardware = hardware

    @property
    def version(self) -> Version:
        """The version it pretends to hold."""
        return self._engine.version

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return self._engine.busy

    def add(self, request: Request) -> None:
        """Queue a request."""
        self._engine.add(request)

    def abort(self, session: TrajectoryId) -> Completion | None:
        """Stop a session's request."""
        return self._engine.abort(session)

    def forget(self, session: TrajectoryId) -> None:
        """Drop what is held of a session."""
        self._engine.forget(session)

    def step(self) -> list[Completion]:
        """Take a step, and as long as the hardware would."""
        before = self._engine.stats()["prefill_tokens"]
        done = self._engine.step()
        read = self._engine.stats()["prefill_tokens"] - before
        hardware = self._hardware
        time.sleep(read * hardware.read_s + _TOKENS_AT_ONCE * hardware.step_s)
        return done

    def update(self, version: Version, weights: Mapping[str, Array], *, keep_kv: bool) -> None:
        """Take a version."""
        self._engine.update(version, weights, keep_kv=True)

    def stats(self) -> Mapping[str, float]:
        """Return the counters."""
        return self._engine.stats()


def _write(request: Request) -> Sequence[int]:
    return (*(1,) * (request.sampling.max_tokens - 1), STOP)


def cost(side: Mapping[str, int]) -> float:
    return sum(CLASSES[name].cost * count for name, count in side.items())


async def measure(side: Mapping[str, int], *, warm_s: float, measure_s: float) -> Counted:
    pools = {
        EngineId(f"{name}-{number}"): name
        for name, count in side.items()
        for number in range(count)
    }
    proxies = {id_: make_proxy(ThrottledEngine(CLASSES[pool]), id_) for id_, pool in pools.items()}
    loops = [asyncio.create_task(proxy.run()) for proxy in proxies.values()]
    pump = Pump(slots=SLOTS, domain_of=MIX.domain)
    board = EngineClient(
        Router(Routing(affinity=AFFINITY), engines=pools.items()),
        generators=proxies,
        now=SystemClock().now,
    )
    worker = make_worker(
        Ends(put=pump.buffer.put, post=pump.controller.post),
        engines=board,
        setups={"reading": setup(**READING), "writing": setup(**WRITING)},
        mix=MIX,
    )
    infos = tuple(EngineInfo(id=id_, pool=pool, version=Version(0)) for id_, pool in pools.items())
    counted = await pump.run(worker, proxies, infos=infos, warm_s=warm_s, measure_s=measure_s)
    for loop in loops:
        loop.cancel()
    await asyncio.gather(*loops, return_exceptions=True)
    return counted


def run(*, effort: Effort) -> dict[str, object]:
    rounds, warm_s, measure_s = {
        "quick": (1, 8.0, 10.0),
        "plain": (3, 8.0, 12.0),
        "full": (5, 10.0, 20.0),
    }[effort]
    rates: dict[str, list[float]] = {name: [] for name in SIDES}
    shares: dict[str, float] = {}
    for _ in range(rounds):
        for name, side in SIDES.items():
            counted = asyncio.run(measure(side, warm_s=warm_s, measure_s=measure_s))
            fewer = min(counted.finished["reading"], counted.finished["writing"])
            rates[name].append(2 * fewer / counted.seconds)
            shares[name] = counted.finished["reading"] / max(1, counted.finished.total())
    middle = {name: median(each) for name, each in rates.items()}
    return {
        "over_compute_only": round(middle["affinity"] / middle["compute_only"], 3),
        "over_bandwidth_only": round(middle["affinity"] / middle["bandwidth_only"], 3),
        "trajectories_per_s": {name: round(rate, 1) for name, rate in middle.items()},
        "reading_share": {name: round(share, 3) for name, share in shares.items()},
        "cost": {name: round(cost(side), 2) for name, side in SIDES.items()},
    }
