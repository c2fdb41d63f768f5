"""One simulated run: the scheduler that runs live, on hardware described in a config.

`simulate_run` drives a `World` to its end and returns the row of each step and a summary. Given a
directory it also writes the event log, a timeline for Perfetto and a plot of how busy each part
was. The log is what `rollart replay` reads: a simulated run is checked as a live one is.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rollart.control.snapshot import encode_rules
from rollart.events import Command, Event
from rollart.observe.log import EventLog, LogHeader, Record
from rollart.observe.plots import plot_utilisation
from rollart.observe.run_directory import LOG
from rollart.observe.trace import Trace, save_trace
from rollart.sim.outcome import Collector, PoolUse, StepRow, StepRows, outcome_of
from rollart.sim.resampling import RecordedWorkload
from rollart.sim.simulator import Observer, Simulator
from rollart.sim.workload import SyntheticWorkload
from rollart.sim.world import World

Watch = Callable[[Simulator], Observer]
"""Given the simulator before it starts; returns an observer of its events."""
TRACE, PLOT = "trace.json", "utilisation.png"
"""The files of a simulated run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What a simulated run showed.

    Example:
        >>> simulated = rollart.simulate("examples/simulate.toml", steps=2)
        >>> simulated.rows[0].step, simulated.summary["mode"]
        (1, 'rollart')

    """

    rows: tuple[StepRow, ...]
    """One row for each optimizer step."""
    summary: Mapping[str, Any]
    """Figures of the whole run: `step_s`, `tokens_per_s`, `staleness`, `utilisation` …"""


def simulate_run(world: World, *, out: Path | None = None, watch: Watch | None = None) -> Simulated:
    """Run a world to its end; given a directory, write log, timeline and plot of use there."""
    collector, use, rows, trace = Collector(), PoolUse(), StepRows(), Trace()

    def note(now: float, event: Event, commands: Sequence[Command]) -> None:
        trace.add(Record(time_s=now, event=event, commands=tuple(commands)))

    observers: list[Observer] = [collector, use, rows]
    simulator = Simulator(world, observers=observers)
    for each in (collector, use, rows):
        each.attach(simulator.fleet)
    if watch is not None:
        observers.append(watch(simulator))
    with ExitStack() as stack:
        if out is not None:
            log = stack.enter_context(_open_log(simulator, out / LOG))
            observers += [note, log.append]
        simulator.run()
    if out is not None:
        save_trace(out / TRACE, trace)
        series = use.series(simulator.loop.now)
        plot_utilisation(
            out / PLOT,
            {name: (each.width_s, each.shares) for name, each in series.items()},
            title=f"{world.rules.mode.name}: share of the time each part worked",
        )
    return Simulated(rows=tuple(rows.rows), summary=_summary(simulator, collector, rows))


def _open_log(simulator: Simulator, path: Path) -> EventLog:
    """Open a new log; its header lets a replay start from the same rules."""
    path.unlink(missing_ok=True)
    workload = simulator.world.workload
    has_tasks = isinstance(workload, SyntheticWorkload | RecordedWorkload)
    tasks = workload.tasks if has_tasks else None
    rules = encode_rules(simulator.scheduler.rules, tasks)
    return EventLog(path, LogHeader(seed=simulator.world.rules.seed, rules=rules))


def _summary(simulator: Simulator, collector: Collector, rows: StepRows) -> dict[str, Any]:
    outcome = outcome_of(simulator, collector)
    wasted = dict(sorted(rows.metrics.ledger.wasted.items()))
    return {
        "mode": simulator.world.rules.mode.name,
        "seed": simulator.world.rules.seed,
        "step_s": outcome.step_s,
        "wait_s": outcome.rollout_s,
        "train_s": outcome.train_s,
        "tokens_per_s": outcome.tokens_per_s,
        "staleness": outcome.staleness,
        "utilisation": outcome.utilisation,
        "reward_utilisation": outcome.reward_utilisation,
        "engine_failures": simulator.outages.count,
        "sampled_tokens": rows.metrics.ledger.sampled,
        "wasted_tokens": {cause: count for cause, count in wasted.items() if count},
        "seconds": outcome.seconds,
        "events": outcome.events,
        "actions": outcome.actions,
        "steps": [asdict(row) for row in rows.rows],
    }
