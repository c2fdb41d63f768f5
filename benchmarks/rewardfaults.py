"""Thousands of scorings through processes, HTTP and Ray, 5 % of them disturbed.

Each path meets functions that hang, fail and crash, connections that drop or Ray workers that are
killed, and duplicate deliveries; a tenth of the disturbed calls fail whenever they are tried. A
trajectory is scored once if exactly one score was taken for its key and it equals the one the
function gives directly. Afterwards the same file scores 64 trajectories and 8 groups that way and
directly: `same_scores` says whether all ways gave the same.

Plain: 5,000 scorings through processes, 5,000 through HTTP, 1,000 through Ray. `--full`: 10,000,
10,000 and 2,000. `--quick`: 600, 600 and 200.
"""

import asyncio
import os
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from time import monotonic

from benchmarks.fault_parts.faulty_line import faulty_line
from rollart.cli.bench import Effort
from rollart.cluster.ray_rewards import RayInvoker
from rollart.cluster.ray_session import connected
from rollart.control.autoscaling import Scaling
from rollart.errors import ScoreError
from rollart.ports import RewardInvoker
from rollart.rewards.invoke.factory import make_reliable, open_invoker
from rollart.rewards.invoke.options import CallLimits, InvokerOptions, Reliability
from rollart.rewards.invoke.retry import CallLine
from rollart.rewards.scoring import score
from rollart.types import (
    GroupId,
    Reward,
    ScoreCall,
    Task,
    Trajectory,
    TrajectoryId,
    Turn,
    Version,
    token_trajectory,
)

NAME = "rewardfaults"
_FILE = Path(__file__).parent / "fault_parts" / "faulty_reward.py"
_SCORE, _COMPARE = f"{_FILE}:score", f"{_FILE}:compare"
_SHARE = 0.05
_AT_ONCE = 32
_INSTANCES = 4
_TIMEOUT_S = 2.0
_FAULTS = {
    "local": ("hang", "raise", "crash", "drop", "duplicate"),
    "http": ("hang", "raise", "crash", "500", "drop", "duplicate"),
    "ray": ("hang", "raise", "crash", "worker", "duplicate"),
}
_COUNTS: dict[Effort, dict[str, int]] = {
    "quick": {"local": 600, "http": 600, "ray": 200},
    "plain": {"local": 5_000, "http": 5_000, "ray": 1_000},
    "full": {"local": 10_000, "http": 10_000, "ray": 2_000},
}
_ON_THE_LINE = {"500", "drop", "duplicate"}
_TOKEN = "benchmark"


@dataclass
class Way:
    """One way to a score: what its calls meet and what became of them."""

    kind: str
    calls: list[ScoreCall]
    faults: dict[str, str]
    lasting: set[str]
    directory: Path
    lines: list[CallLine] = field(default_factory=list)
    scored: dict[str, tuple[Reward, ...]] = field(default_factory=dict)
    dropped: dict[str, str] = field(default_factory=dict)
    stats: dict[str, float] = field(default_factory=dict)
    took_s: float = 0.0


def make_trajectory(number: int, draw: Random) -> Trajectory:
    words = ["left", "right", "up", "down", "the", "a", "key", "door", "42", "7"]
    turns = tuple(
        Turn(
            prompt_tokens=tuple(draw.randrange(1000) for _ in range(8)),
            tokens=tuple(draw.randrange(1000) for _ in range(draw.randint(1, 12))),
            logprobs=(-0.5,),
            versions=(Version(3),),
            observation="a room",
            action=" ".join(draw.choices(words, k=draw.randint(1, 9))),
            reward=0.0,
        )
        for _ in range(draw.randint(1, 3))
    )
    return token_trajectory(
        id=TrajectoryId(number),
        group=GroupId(number // 8),
        task=Task(id=number, env="maze", domain="maze", seed=number),
        turns=turns,
        stop="terminated",
        success=False,
        reward=0.0,
    )


def _path(kind: str, count: int, directory: Path) -> Way:
    draw = Random(f"{kind}/{count}")
    disturbed = draw.sample(range(count), int(_SHARE * count))
    faults, lasting, calls = dict[str, str](), set[str](), list[ScoreCall]()
    for n, number in enumerate(disturbed):
        faults[f"{kind}/{number}"] = _FAULTS[kind][n % len(_FAULTS[kind])]
    for number in range(count):
        key = f"{kind}/{number}"
        options: dict[str, object] = {"directory": str(directory)}
        fault = faults.get(key, "")
        if fault and draw.random() < 0.1:
            fault = faults[key] = "raise"
            lasting.add(key)
        if fault and fault != "duplicate" and not (kind == "http" and fault in _ON_THE_LINE):
            options |= {"fault": fault, "is_lasting": key in lasting}
        calls.append(
            ScoreCall(
                function=_SCORE,
                options=options,  # type: ignore[arg-type]
                trajectories=(make_trajectory(number, draw),),
                is_group=False,
                key=key,
            )
        )
    return Way(kind, calls, faults, lasting, directory)


def _options(kind: str, url: str = "") -> InvokerOptions:
    return InvokerOptions(
        kind=kind,  # type: ignore[arg-type]
        url=url,
        cpus=(os.cpu_count() or 1) / _INSTANCES,
        scaling=Scaling(max_instances=_AT_ONCE if kind == "http" else _INSTANCES, idle_s=5.0),
        limits=CallLimits(timeout_s=3 * _TIMEOUT_S if kind == "http" else _TIMEOUT_S),
        reliability=Reliability(attempts=5, backoff_s=0.05, breaker_failures=50, deadline_s=120.0),
    )


@asynccontextmanager
async def _served() -> AsyncIterator[int]:
    """Run `rollart function serve` as a process; yield its port."""
    main = "import sys; from rollart.cli import main; sys.exit(main())"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", main, "function", "serve", "--port", "0", _SCORE, _COMPARE),
        *("--instances", str(_INSTANCES), "--timeout-s", str(_TIMEOUT_S)),
        env={**os.environ, "ROLLART_FUNCTION_TOKEN": _TOKEN},
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        line = (await process.stdout.readline()).decode()
        yield int(line.rstrip("/\n").rpartition(":")[2])
    finally:
        process.terminate()
        await process.communicate()


@asynccontextmanager
async def _opened(path: Way) -> AsyncIterator[RewardInvoker]:
    if path.kind == "local":
        invoker = open_invoker(_options("local"), on_call=path.lines.append)
        try:
            yield invoker
        finally:
            await invoker.close()
        return
    if path.kind == "ray":
        options = _options("ray")
        with connected("local"):
            invoker = make_reliable(RayInvoker(options), options, on_call=path.lines.append)
            try:
                yield invoker
            finally:
                await invoker.close()
        return
    on_the_line = {key: fault for key, fault in path.faults.items() if fault in _ON_THE_LINE}
    async with _served() as port, faulty_line(port, on_the_line) as url:
        invoker = open_invoker(_options("http", url), on_call=path.lines.append)
        try:
            yield invoker
        finally:
            await invoker.close()


async def _score_all(path: Way, invoker: RewardInvoker) -> None:
    async def work(calls: Iterator[ScoreCall]) -> None:
        for call in calls:
            times = 2 if path.faults.get(call.key) == "duplicate" else 1
            got = await asyncio.gather(
                *(invoker.invoke(call) for _ in range(times)), return_exceptions=True
            )
            for each in got:
                if isinstance(each, ScoreError):
                    path.dropped[call.key] = str(each)
                elif isinstance(each, BaseException):
                    raise each
                else:
                    path.scored[call.key] = each

    start = monotonic()
    calls = iter(path.calls)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(_AT_ONCE):
            tasks.create_task(work(calls))
    path.took_s = monotonic() - start
    path.stats = dict(invoker.stats())


async def _same_scores(path: Way, invoker: RewardInvoker) -> bool:
    """Say whether this path gives what the functions give when they are called directly."""
    few = [replace(each, options={"directory": str(path.directory)}) for each in path.calls[:64]]
    trajectories = tuple(each.trajectories[0] for each in few)
    groups = [
        ScoreCall(
            function=_COMPARE,
            options={},
            trajectories=trajectories[start : start + 8],
            is_group=True,
            key=f"group/{start}",
        )
        for start in range(0, 64, 8)
    ]
    calls = [replace(each, key=f"same/{each.key}") for each in few] + groups
    return [await invoker.invoke(each) for each in calls] == [await score(each) for each in calls]


async def _judge(path: Way) -> dict[str, int]:
    """Count what became of every trajectory."""
    lines = Counter(line.key for line in path.lines if not line.failure)
    completed = Counter((path.directory / "completed").read_text().split())
    counts = Counter[str]()
    with tempfile.TemporaryDirectory() as aside:
        for call in path.calls:
            key = call.key
            rewards = path.scored.get(key)
            (direct,) = await score(replace(call, options={"directory": aside}))
            is_right = rewards == (direct,) and key not in path.lasting and key not in path.dropped
            counts["scored_once"] += is_right and lines[key] == 1
            counts["scored_twice"] += lines[key] > 1
            counts["failures_scored"] += rewards is not None and not is_right
            counts["dropped_with_reason"] += rewards is None and bool(path.dropped.get(key))
            counts["lost"] += rewards is None and not path.dropped.get(key)
            counts["ran_twice"] += completed[key.rpartition("/")[2]] > 1
    return dict(counts)


async def _measure(kind: str, count: int, directory: Path) -> tuple[dict[str, object], bool]:
    path = _path(kind, count, directory)
    async with _opened(path) as invoker:
        await _score_all(path, invoker)
        counts = await _judge(path)
        path.lines.clear()
        is_same = await _same_scores(path, invoker)
    met = Counter(path.faults.values())
    kept = ("retries", "joined", "cold_starts", "instance_deaths", "latency_p50_s", "latency_p99_s")
    stats = {name: round(path.stats[name], 4) for name in kept if name in path.stats}
    rate = round(count / path.took_s, 1)
    told = {**counts, "faults": dict(met), "lasting": len(path.lasting), "scored_per_s": rate}
    print(f"{kind}: {told} {stats}", file=sys.stderr, flush=True)
    reasons = Counter(reason.partition(": ")[2][:60] for reason in path.dropped.values())
    print(f"{kind}: dropped because {dict(reasons)}", file=sys.stderr, flush=True)
    return {**told, **stats}, is_same


def run(*, effort: Effort) -> dict[str, object]:
    counts = _COUNTS[effort]
    os.environ["ROLLART_FUNCTION_TOKEN"] = _TOKEN
    details: dict[str, dict[str, object]] = {}
    same: list[bool] = []
    for kind, count in counts.items():
        with tempfile.TemporaryDirectory() as directory:
            details[kind], is_same = asyncio.run(_measure(kind, count, Path(directory)))
            same.append(is_same)
    names = ("scored_once", "dropped_with_reason", "lost", "scored_twice", "failures_scored")
    totals = {name: sum(int(str(each[name])) for each in details.values()) for name in names}
    return {
        "scorings": sum(counts.values()),
        **totals,
        "same_scores": all(same),
        **details,
    }
