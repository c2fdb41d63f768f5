"""What a turn costs when nothing else does: on Ray, and in one process.

1,000 trajectories run at once, of 10 turns each, in a world that answers at once; the engine knows
its 4 tokens beforehand. Everything else is real: controller, scheduler, environment workers,
router, engine server. On Ray the engine and two environment workers are actors. Processor time is
that of all processes together, Ray's own included. Figures are medians over rounds that alternate.

Plain: 3 rounds of 10 s each. `--full`: 5 of 20 s. `--quick`: 1 of 5 s.
"""

import asyncio
import gc
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks.ray_runs.free_parts import MIX, free_engine, make_proxy, make_worker
from benchmarks.ray_runs.pumping import Counted, Pump
from rollart.cli.bench import Effort
from rollart.clock import SystemClock
from rollart.cluster.engine_server import RemoteEngine
from rollart.cluster.env_supervisor import EnvSupervisor, EnvSupervisorOptions
from rollart.cluster.local_host import thread_env
from rollart.cluster.ray_host import RayHost
from rollart.cluster.ray_session import connected
from rollart.control.routing import Router, Routing
from rollart.rollout.engine_client import EngineClient
from rollart.rollout.env_worker import Ends
from rollart.types import EngineId, EngineInfo, Version

NAME = "overhead"
CONCURRENT = 1000
WORKERS = 2
_PARTS = "benchmarks.ray_runs.free_parts"
_ENGINE = EngineId("engine-0")
_INFOS = (EngineInfo(id=_ENGINE, pool="local", version=Version(0)),)


async def embedded(*, warm_s: float, measure_s: float) -> Counted:
    pump = Pump(slots=CONCURRENT, domain_of=MIX.domain)
    proxy = make_proxy(free_engine(), _ENGINE)
    driving = asyncio.create_task(proxy.run())
    router = Router(Routing(), engines=[(_ENGINE, "local")])
    board = EngineClient(router, generators={_ENGINE: proxy}, now=SystemClock().now)
    ends = Ends(put=pump.buffer.put, post=pump.controller.post)
    worker = make_worker(ends, engines=board)
    gc.collect()
    gc.freeze()  # as a run does
    counted = await pump.run(
        worker, {_ENGINE: proxy}, infos=_INFOS, warm_s=warm_s, measure_s=measure_s
    )
    gc.unfreeze()
    driving.cancel()
    return counted


async def on_ray(*, warm_s: float, measure_s: float) -> tuple[Counted, float]:
    host = RayHost(env=thread_env(1))
    pump = Pump(slots=CONCURRENT, domain_of=MIX.domain)
    handle = await host.spawn(f"{_PARTS}:FreeEngine", {"name": _ENGINE})
    await handle.call("start")
    lost: list[Any] = []
    engine = RemoteEngine(
        handle, id=_ENGINE, caller="controller", lose=lambda *error: lost.append(error)
    )
    options = EnvSupervisorOptions(
        spawn=lambda name, _is_spare: host.spawn(f"{_PARTS}:FreeEnvironments", {"name": name}),
        release=lost.append,
        leave=lost.append,
        is_better=lambda _name: False,
        warn=lost.append,
        give_up=lost.append,
    )
    workers = EnvSupervisor(
        options,
        count=WORKERS,
        ends=Ends(put=pump.buffer.put, post=pump.controller.post),
        handle_of=lambda _engine: handle,
        on_lost_engine=lambda *error: lost.append(error),
    )
    await workers.start()
    workers.open_engine(_ENGINE, "local", is_guest=False)
    calls = await handle.call("calls")
    counted = await pump.run(
        workers, {_ENGINE: engine}, infos=_INFOS, warm_s=warm_s, measure_s=measure_s
    )
    calls = await handle.call("calls") - calls
    stats = await handle.call("stats")
    engine.close()
    await host.close()
    assert not lost, lost
    return counted, calls / max(1.0, stats["sampled_tokens"] / 4)


def run(*, effort: Effort) -> dict[str, object]:
    rounds, warm_s, measure_s = {
        "quick": (1, 3.0, 5.0),
        "plain": (3, 4.0, 10.0),
        "full": (5, 5.0, 20.0),
    }[effort]
    local: list[Counted] = []
    ray: list[Counted] = []
    calls: list[float] = []
    for _ in range(rounds):
        local.append(asyncio.run(embedded(warm_s=warm_s, measure_s=measure_s)))
        with connected("local"):
            counted, calls_per_turn = asyncio.run(on_ray(warm_s=warm_s, measure_s=measure_s))
        ray.append(counted)
        calls.append(calls_per_turn)
    return {
        "ray_turns_per_s": _turns_per_s(ray),
        "embedded_turns_per_s": _turns_per_s(local),
        "ray_cpu_us_per_turn": _cpu_us_per_turn(ray),
        "embedded_cpu_us_per_turn": _cpu_us_per_turn(local),
        "ray_engine_calls_per_turn": round(median(calls), 4),
        "concurrent": CONCURRENT,
    }


def _turns_per_s(rounds: Sequence[Counted]) -> float:
    return round(median(each.turns / each.seconds for each in rounds), 1)


def _cpu_us_per_turn(rounds: Sequence[Counted]) -> float:
    return round(median(1e6 * each.cpu_s / each.turns for each in rounds), 1)
