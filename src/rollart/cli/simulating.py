"""One simulated run for the command line: what is shown meanwhile, and the files it leaves."""

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.status import Status

from rollart.control.recording import encode_rules
from rollart.events import Command, Event, StepFinished
from rollart.observe.log import EventLog, LogHeader, Record
from rollart.observe.plots import plot_utilisation
from rollart.observe.trace import Trace, save_trace
from rollart.sim.outcome import Collector, outcome_of
from rollart.sim.pool_use import PoolUse
from rollart.sim.recorded_work import RecordedWorkload
from rollart.sim.simulator import Observer, Simulator
from rollart.sim.steps import StepRow, StepRows
from rollart.sim.workload import SyntheticWorkload
from rollart.sim.world import World

_LOOK_EVERY = 64
"""Events of the scheduler between two looks at the clock."""
_REFRESH_S = 0.25
_PLAIN_S = 5.0
"""Least time between two plain lines."""


class Ticker:
    """Says how far things are: one line that changes on a terminal, plain lines elsewhere.

    Plain lines come at most every few seconds, each with the time since the start, so that what is
    over quickly says nothing.
    """

    def __init__(self, title: str, *, steps: int = 0) -> None:
        self._title = title
        self._steps = steps
        console = Console(file=sys.stderr, highlight=False)
        self._status: Status | None = (
            console.status(title, spinner="dots") if console.is_terminal else None
        )
        self._began = self._shown = self._printed = time.monotonic()
        self._simulator: Simulator | None = None
        self._attached = self._began
        self._seen = 0
        self._step = 0

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()
        if kind is None and time.monotonic() - self._began >= _PLAIN_S:
            self._print("done")

    @property
    def elapsed_s(self) -> float:
        """Time since it was made."""
        return time.monotonic() - self._began

    def say(self, text: str) -> None:
        """Say what is being done."""
        if self._status is not None:
            self._status.update(f"{self._title}, {self.elapsed_s:.0f} s: {text}")
        elif time.monotonic() - self._printed >= _PLAIN_S:
            self._print(text)

    def _print(self, text: str) -> None:
        self._printed = time.monotonic()
        sys.stderr.write(f"{self._title}, {self.elapsed_s:.0f} s: {text}\n")
        sys.stderr.flush()

    def attach(self, simulator: Simulator) -> None:
        """Count this simulator's events from now on."""
        self._simulator = simulator
        self._attached = time.monotonic()

    def __call__(self, now: float, event: Event, commands: Sequence[Command]) -> None:
        """Show the simulated step and time now and then."""
        del commands
        assert self._simulator is not None
        self._seen += 1
        if isinstance(event, StepFinished):
            self._step = event.version
        elif self._seen % _LOOK_EVERY:
            return
        moment = time.monotonic()
        if moment - self._shown >= _REFRESH_S:
            self._shown = moment
            speed = self._simulator.actions / (moment - self._attached)
            self.say(f"step {self._step}/{self._steps}, {now:,.0f} s, {speed:,.0f} actions/s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """What a simulated run showed."""

    rows: tuple[StepRow, ...]
    summary: Mapping[str, Any]


def simulate_run(world: World, *, out: Path, ticker: Ticker) -> Simulated:
    """Run a world and write its log, timeline and plot of use into a directory."""
    collector, use, rows, trace = Collector(), PoolUse(), StepRows(), Trace()
    log = out / "events.jsonl"
    log.unlink(missing_ok=True)
    rules, workload = world.rules, world.workload
    has_tasks = isinstance(workload, SyntheticWorkload | RecordedWorkload)
    tasks = workload.tasks if has_tasks else None

    def note(now: float, event: Event, commands: Sequence[Command]) -> None:
        trace.add(Record(time_s=now, event=event, commands=tuple(commands)))

    observers: list[Observer] = [collector, use, rows, note, ticker]
    simulator = Simulator(world, observers=observers)
    header = LogHeader(seed=rules.seed, rules=encode_rules(simulator.scheduler.rules, tasks))
    with EventLog(log, header) as events:
        observers.append(events.append)
        collector.attach(simulator.fleet)
        use.attach(simulator.fleet)
        rows.attach(simulator.fleet)
        ticker.attach(simulator)
        simulator.run()
    save_trace(out / "trace.json", trace)
    series = use.series(simulator.loop.now)
    plot_utilisation(
        out / "utilisation.png",
        {name: (each.width_s, each.shares) for name, each in series.items()},
        title=f"{rules.mode.name}: share of the time each part worked",
    )
    return Simulated(rows=tuple(rows.rows), summary=_summary(simulator, collector, rows))


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


def readable(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Return a summary in words, as a person reads it."""
    wasted: Mapping[str, int] = summary["wasted_tokens"]
    return {
        "mode": summary["mode"],
        "seed": str(summary["seed"]),
        "seconds a step": summary["step_s"],
        "of them waiting for rollout": summary["wait_s"],
        "of them training": summary["train_s"],
        "trained tokens a second": summary["tokens_per_s"],
        "largest staleness": summary["staleness"],
        **{f"{pool} busy": f"{share:.0%}" for pool, share in summary["utilisation"].items()},
        "rewards busy": f"{summary['reward_utilisation']:.0%}",
        "engine failures": summary["engine_failures"],
        "sampled tokens": summary["sampled_tokens"],
        "wasted tokens": ", ".join(f"{n:,} {cause}" for cause, n in wasted.items()) or "none",
        "simulated seconds": summary["seconds"],
        "events of the scheduler": summary["events"],
        "actions on the loop": summary["actions"],
    }


def step_table(rows: Sequence[StepRow], *, has_tokens: bool = True) -> list[dict[str, Any]]:
    """Return the rows as a table shows them; a log alone does not tell all tokens trained."""
    return [
        {
            "step": row.step,
            "step s": row.step_s,
            "wait s": row.wait_s,
            "train s": row.train_s,
            **({"tokens/s": row.tokens_per_s} if has_tokens else {}),
            "staleness": row.staleness,
            **{f"{pool} busy": f"{share:.0%}" for pool, share in row.utilisation.items()},
            "wasted tokens": row.wasted,
        }
        for row in rows
    ]
