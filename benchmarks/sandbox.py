"""Sandbox benchmark: what a start costs, and hundreds of hostile programs against one host.

Starts: programs that print a line run one after another, cold and warm cells and plain processes
taking turns; cold and warm again several at once for the rates. Warm cells are started beforehand
and the rate is that of a burst no larger than the pool: what a reward's burst sees. What the pool
pays to fill itself again is the cold rate.

Escapes: attacks drawn from `rollart.sandbox.attacks` with a seed, started in five ways, run a few
at once beside a host that has something to steal: a file anybody may read, a variable of the
environment, three listeners, a process to kill. An escape is anything reached, written, connected
to or killed, a program that ran on past its wall limit (`ENDING_S` later it must be dead and seen
to be) or never came back, or a process left at the end; `tried` counts the attacks that ran to
their own end or to a limit, which is all of them unless the sandbox itself failed.

The host's other work is processes that compute without pause (arithmetic over a list of numbers)
and count their rounds. Their pace is read in windows that alternate: attacks running, attacks held
back until none runs, a quarter as long. `host_slowdown` is one minus the ratio of the two, the
median over pairs of neighbouring windows, with work on half of the cores while all attacks run.
With work on every core the attacks get only what `cpu_shares` gives them and take long, so
`host_slowdown_all_cores` is measured over a few. The benchmark's own process, which starts
sandboxes and reads their answers, counts among what slows the work.

- `starts_per_s_cold`, `starts_per_s_warm`: programs started and finished a second, `CONCURRENCY`
  at once; warm as a burst
- `overhead_s`: seconds from call to result of a program that prints a line, less the plain one's
- `longest_overrun_s`: the most that a program was seen past its wall limit
- `escapes`, `left_processes`, `host_slowdown`, `host_slowdown_all_cores`
- `by_kind`: attacks, escapes and ends of each kind
- `forgeries`, `forgery_ways`, `forged`, `forgeries_unscored`: answers that do not solve their task,
  how many ways they try to be paid, how many scores had a passed test or failed;
  `forged_in_shared_process`: how many fool a test runner that shares their process
- `memory_programs`, `memory_modes`, `over_limit`: attacks on the limit of memory with control
  groups of version 1 and 2, where the kernel has them, and without; a program is over the limit if
  more was ever held than `memory_limit_mb`, counted by a control group. Escapes count in `escapes`.

Plain: 240 hostile programs. `--full`: 1,040. `--quick`: 76, and fewer starts.
"""

import asyncio
import multiprocessing
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from ctypes import c_ulong
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from typing import Any

from benchmarks.sandbox_parts.forging import measure_forgeries, measure_memory
from rollart.cli.bench import Effort
from rollart.errors import SandboxError
from rollart.ports import Sandbox
from rollart.sandbox.bubblewrap import BubblewrapSandbox
from rollart.sandbox.options import SandboxOptions
from rollart.sandbox.subprocess import PlainSandbox
from rollart.types import Program
from studies.attacks.attack import TIGHT, Attack
from studies.attacks.draw import draw
from studies.attacks.trap import ENDING_S, Trap

NAME = "sandbox"
CONCURRENCY = 4
SEED = 5
WINDOW_S = 4.0
STUCK_S = 120.0
"""Seconds past all its limits after which a run is given up: its program cannot be ended."""
HELLO = Program(argv=("python3", "-c", "print('hello')"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Edition:
    """How much is measured."""

    repeats: int
    """Starts of each kind, one after another."""
    attacks: int
    """Hostile programs beside work on half of the cores."""
    attacks_all_cores: int
    """Hostile programs beside work on every core."""
    forms_each: int
    """Forms of tests by which each forgery is scored, in each of two kinds of sandbox."""


EDITIONS: dict[Effort, Edition] = {
    "quick": Edition(repeats=8, attacks=60, attacks_all_cores=16, forms_each=1),
    "plain": Edition(repeats=40, attacks=200, attacks_all_cores=40, forms_each=1),
    "full": Edition(repeats=40, attacks=1000, attacks_all_cores=40, forms_each=5),
}


def run(*, effort: Effort) -> dict[str, Any]:
    edition = EDITIONS[effort]
    result = asyncio.run(measure_starts(repeats=edition.repeats))
    cores = os.cpu_count() or 1
    few = asyncio.run(measure_attacks(count=edition.attacks_all_cores, workers=cores))
    result |= asyncio.run(measure_attacks(count=edition.attacks, workers=max(1, cores // 2)))
    result["host_slowdown_all_cores"] = few["host_slowdown"]
    result["escapes"] += few["escapes"]
    result["programs"] += few["programs"]
    result["tried"] += few["tried"]
    result["longest_overrun_s"] = max(result["longest_overrun_s"], few["longest_overrun_s"])
    result |= asyncio.run(measure_forgeries(forms_each=edition.forms_each))
    result |= asyncio.run(measure_memory())
    result["escapes"] += len(result["memory_escapes"])
    return result


async def measure_starts(*, repeats: int) -> dict[str, Any]:
    """Measure calls one by one, then the rates of many at once."""
    cold = BubblewrapSandbox(SandboxOptions(warm=0, concurrency=CONCURRENCY))
    warm = BubblewrapSandbox(SandboxOptions(warm=1, concurrency=CONCURRENCY))
    plain = PlainSandbox(SandboxOptions(kind="plain", allow_plain=True))
    sides: dict[str, Sandbox] = {"plain": plain, "cold": cold, "warm": warm}
    calls: dict[str, list[float]] = {name: [] for name in sides}
    starts: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, sandbox in sides.items():
            await warm.warm_up()
            begin = time.perf_counter()
            result = await sandbox.run(HELLO)
            calls[name].append(time.perf_counter() - begin)
            starts[name].append(result.start_s)
            assert result.stdout == b"hello\n", result
    await warm.close()
    medians = {name: statistics.median(values) for name, values in calls.items()}
    rates = {"cold": await _rate(cold.run, 4 * repeats)}
    await cold.close()
    bursts = [await _burst(repeats) for _ in range(3)]
    return {
        "starts_per_s_cold": round(rates["cold"], 1),
        "starts_per_s_warm": round(statistics.median(bursts), 1),
        "overhead_s": {
            name: round(medians[name] - medians["plain"], 4) for name in ("cold", "warm")
        },
        "call_s": {name: round(value, 4) for name, value in medians.items()},
        "start_s": {name: round(statistics.median(v), 4) for name, v in starts.items()},
        "held_by": dict(cold.describe()),
    }


async def _rate(call: Callable[[Program], Awaitable[object]], count: int) -> float:
    begin = time.perf_counter()
    await asyncio.gather(*(call(HELLO) for _ in range(count)))
    return count / (time.perf_counter() - begin)


async def _burst(count: int) -> float:
    """Return the rate of a burst as large as the pool of warm cells."""
    sandbox = BubblewrapSandbox(SandboxOptions(warm=count, concurrency=CONCURRENCY))
    await sandbox.warm_up()
    try:
        return await _rate(sandbox.run, count)
    finally:
        await sandbox.close()


async def measure_attacks(*, count: int, workers: int) -> dict[str, Any]:
    """Let loose the attacks in windows, with the host's work beside them."""
    attacks = draw(count, seed=SEED)
    tally = Tally()
    sandbox = BubblewrapSandbox(
        SandboxOptions(warm=CONCURRENCY // 2, concurrency=CONCURRENCY, limits=TIGHT)
    )
    with Work(workers) as work:
        async with Trap() as trap:
            paces = await _windows(attacks, sandbox, trap, tally, work)
            await sandbox.close()
            left = trap.left_processes()
    slowdown = [1 - busy / idle for busy, idle in paces]
    return {
        "programs": count,
        "escapes": sum(tally.escapes.values()) + len(left),
        "escaped": tally.found,
        "tried": count - tally.failures,
        "left_processes": len(left),
        "host_slowdown": round(statistics.median(slowdown), 4),
        "host_slowdown_windows": len(paces),
        "longest_overrun_s": round(tally.overrun_s, 2),
        "attack_wall_s": round(tally.wall_s, 1),
        "by_kind": {
            kind: {
                "programs": tally.programs[kind],
                "escapes": tally.escapes[kind],
                **{f"ended_{end}": n for (k, end), n in sorted(tally.ends.items()) if k == kind},
            }
            for kind in sorted(tally.programs)
        },
    }


class Tally:
    """What became of the attacks."""

    def __init__(self) -> None:
        self.programs: Counter[str] = Counter()
        self.escapes: Counter[str] = Counter()
        self.ends: Counter[tuple[str, str]] = Counter()
        self.found: list[str] = []
        self.failures = 0
        self.wall_s = 0.0
        self.overrun_s = 0.0

    async def attack(self, attack: Attack, way: str, sandbox: Sandbox, trap: Trap) -> None:
        """Make one attack and note what it reached."""
        self.programs[attack.kind] += 1
        limits = attack.limits
        try:
            async with asyncio.timeout(limits.wall_s + ENDING_S + STUCK_S):
                result = await sandbox.run(attack.program(trap.target, way))
        except TimeoutError:
            self._escaped(attack, way, f"did not end {STUCK_S:g} s after its wall limit")
            return
        except SandboxError as error:
            self.failures += 1
            print(f"{attack.name}/{way}: {error}", file=sys.stderr)
            return
        self.ends[attack.kind, result.end] += 1
        self.wall_s += result.wall_s
        self.overrun_s = max(self.overrun_s, result.wall_s - limits.wall_s)
        if found := trap.findings(result, limits):
            self._escaped(attack, way, found[0])

    def _escaped(self, attack: Attack, way: str, how: str) -> None:
        self.escapes[attack.kind] += 1
        self.found.append(f"{attack.name}/{way}: {how}")


async def _windows(
    attacks: list[tuple[Attack, str]],
    sandbox: BubblewrapSandbox,
    trap: Trap,
    tally: Tally,
    work: "Work",
) -> list[tuple[float, float]]:
    """Alternate windows with and without attacks; return the host's pace in each pair."""
    paces: list[tuple[float, float]] = []
    queue = list(reversed(attacks))
    while queue:
        end = time.perf_counter() + WINDOW_S
        async with asyncio.TaskGroup() as tasks:
            for _ in range(CONCURRENCY):
                tasks.create_task(_attack_until(end, queue, sandbox, trap, tally))
            busy = await work.pace(WINDOW_S)
            was_full = bool(queue)
        await sandbox.warm_up()
        idle = await work.pace(WINDOW_S / 4)
        if was_full or not paces:
            paces.append((busy, idle))
        print(f"{len(queue)} left, pace {busy / idle:.3f}", file=sys.stderr)
    return paces


async def _attack_until(
    end: float, queue: list[tuple[Attack, str]], sandbox: Sandbox, trap: Trap, tally: Tally
) -> None:
    while queue and time.perf_counter() < end:
        attack, way = queue.pop()
        await tally.attack(attack, way, sandbox, trap)


class Work:
    """The host's other work: processes that compute and count their rounds."""

    def __init__(self, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._counts: list[Synchronized[int]] = [context.Value(c_ulong, 0) for _ in range(workers)]
        self._processes = [
            context.Process(target=_compute, args=(count,), daemon=True) for count in self._counts
        ]

    def __enter__(self) -> "Work":
        for process in self._processes:
            process.start()
        while not all(count.value for count in self._counts):
            time.sleep(0.05)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.kill()
            process.join()

    async def pace(self, seconds: float) -> float:
        """Return the rounds a second all of them make together in the next seconds."""
        begin, before = time.perf_counter(), self._rounds()
        await asyncio.sleep(seconds)
        return (self._rounds() - before) / (time.perf_counter() - begin)

    def _rounds(self) -> int:
        return sum(count.value for count in self._counts)


def _compute(count: "Synchronized[int]") -> None:
    numbers = list(range(20_000))
    while True:
        total = 0
        for number in numbers:
            total += number * number % 7
        count.get_obj().value += 1
