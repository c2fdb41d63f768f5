"""Event-log benchmark: how fast the log of a run is written and read.

The records come from the real `Scheduler` answering the world of `benchmarks/control.py` with 512
environments, as one process would log them: about half are births and ends of attempts. They are
written to a file and read from it by the product's `EventLog` and `read_log`, and by the
hand-written log that was there before (`log_parts/before.py`). Both sides take turns in rounds,
each first every second time; what each reads must be what it wrote. Figures are medians.

- `write_per_s`, `read_per_s`: records a second of the product
- `over_before_write`, `over_before_read`: its speed over that of the log before

Plain: 11 rounds of 20,000 records. `--full`: 41 rounds. `--quick`: 3 rounds of 2,000.
"""

import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import TypeVar

from benchmarks.control import World
from benchmarks.log_parts import before
from rollart.cli.bench import Effort
from rollart.events import (
    Command,
    EngineUpdated,
    Event,
    Published,
    StepFinished,
    TrajectoryFinished,
)
from rollart.observe.log import EventLog, LogHeader, read_log
from rollart.types import EngineId

NAME = "log"
SLOTS = 512
STEP_METRICS = {f"train/metric_{number}": number / 7 for number in range(24)}
SYNC_METRICS = {"pull_s": 0.0123456, "exposed_s": 0.0023456, "load_s": 0.0012345}

T = TypeVar("T")
Entry = tuple[float, Event, list[Command]]
"""A record as the controller hands it over: the time, the event and its commands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Took:
    """Seconds that one side took in one round."""

    write_s: float
    read_s: float


def make_entries(count: int) -> list[Entry]:
    """Let a scheduler run until there are `count` records."""
    world = World(SLOTS, seed=1)
    entries: list[Entry] = []
    while len(entries) < count:
        events, now = world.chunk(), world.now
        commands = [world.scheduler.handle(event, now) for event in events]
        for number, (event, batch) in enumerate(zip(events, commands, strict=True)):
            entries.append((now + number * 1.2345678e-4, _complete(event), batch))
        world.obey(events, commands)
    return entries[:count]


def _complete(event: Event) -> Event:
    """Add what a live run logs and the scheduler does not look at."""
    match event:
        case StepFinished():
            return replace(event, metrics=STEP_METRICS)
        case Published() | EngineUpdated():
            return replace(event, metrics=SYNC_METRICS)
        case TrajectoryFinished():
            served = {EngineId(f"e{event.info.id % 8}"): event.info.turns}
            return replace(event, info=replace(event.info, served=served))
        case _:
            return event


def measure_now(entries: Sequence[Entry], path: Path) -> Took:
    """Write and read a log with the product."""

    def write() -> None:
        with EventLog(path, LogHeader(seed=0)) as log:
            for entry in entries:
                log.append(*entry)

    write_s, _ = _timed(write)
    read_s, (part,) = _timed(lambda: read_log(path))
    assert [(r.time_s, r.event, list(r.commands)) for r in part.records] == entries
    return Took(write_s=write_s, read_s=read_s)


def measure_before(entries: Sequence[Entry], path: Path) -> Took:
    """Write and read a log with the hand-written codec."""

    def write() -> None:
        with before.EventLog(path) as log:
            for entry in entries:
                log.append(*entry)

    write_s, _ = _timed(write)
    read_s, records = _timed(lambda: before.read_log(path))
    assert [(r.time_s, r.event, list(r.commands)) for r in records] == entries
    return Took(write_s=write_s, read_s=read_s)


def _timed(call: Callable[[], T]) -> tuple[float, T]:
    gc.collect()
    begin = time.perf_counter()
    result = call()
    return time.perf_counter() - begin, result


def run(*, effort: Effort) -> dict[str, object]:
    rounds, count = {"quick": (3, 2_000), "plain": (11, 20_000), "full": (41, 20_000)}[effort]
    entries = make_entries(count)
    sides = {"now": measure_now, "before": measure_before}
    took: dict[str, list[Took]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        order = list(sides) if number % 2 else list(sides)[::-1]
        for name in order:
            with tempfile.TemporaryDirectory(prefix="rollart-bench-") as directory:
                seconds = sides[name](entries, Path(directory) / "events.jsonl")
            if number:  # the first round warms up: codecs are made on first use
                took[name].append(seconds)
    return report(count, now=took["now"], before=took["before"])


def report(records: int, *, now: Sequence[Took], before: Sequence[Took]) -> dict[str, object]:
    """Return the figures of all rounds."""
    pairs = list(zip(now, before, strict=True))
    return {
        "write_per_s": round(records / median(each.write_s for each in now)),
        "read_per_s": round(records / median(each.read_s for each in now)),
        "over_before_write": round(median(b.write_s / n.write_s for n, b in pairs), 3),
        "over_before_read": round(median(b.read_s / n.read_s for n, b in pairs), 3),
    }
