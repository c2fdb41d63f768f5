"""The progress display: what a person sees while a run is in progress.

On a terminal a live panel shows step, reward, success, speed, staleness, what each part waits for,
where tokens were wasted and the time left. Elsewhere each step prints one line. Messages stay on
screen above the panel. The panel is drawn in a thread of its own that only reads, so it cannot
disturb the run.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rollart.clock import SystemClock
from rollart.errors import printable
from rollart.observe.metrics import Metrics, Status
from rollart.types import EngineId

REFRESH_PER_S = 2
_MOST_CAUSES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """The load of the engines at one moment.

    Example:
        >>> Traffic(requests=48, idle=1)

    """

    requests: int
    """Requests without a completion yet, including those at engines that change weights."""
    idle: int
    """Engines that could generate but have no request."""


class Progress:
    """Shows a run's progress, messages and warnings."""

    def __init__(
        self, metrics: Metrics, *, steps: int, title: str, unit: str = "tokens", file: IO[str]
    ) -> None:
        """Take what to show; `unit` is what the cost of a trajectory counts."""
        self._metrics = metrics
        self._unit = unit
        self._steps = steps
        self._title = title
        self._console = Console(file=file, highlight=False)
        self.waiting_for: Callable[[], str] = lambda: "groups"
        """Returns what the next optimizer step waits for; set by the driver."""
        self.in_flight: Callable[[], Mapping[EngineId, int]] = lambda: {}
        """Returns the requests at each engine of this process; set by the driver.

        Called by the display, twice a second. Empty if unknown, as on a cluster.
        """
        self._live: Live | None = None
        self._row: Mapping[str, float] = {}
        self._first: tuple[int, float] | None = None
        self._clock = SystemClock()

    def start(self) -> None:
        """Start the display; on a terminal the live panel appears."""
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._panel,
                console=self._console,
                refresh_per_second=REFRESH_PER_S,
                transient=True,
            )
            self._live.start()

    def tick(self, now: float) -> None:
        """Set the run's time; the panel's clock runs on from there between events."""
        self._clock = SystemClock(now)

    def step(self, row: Mapping[str, float]) -> None:
        """Show a finished step."""
        self._row = row
        if self._first is None:
            self._first = (int(row["step"]), row["time_s"])
        if self._live is None:
            self._console.print(Text(self._line(row)), soft_wrap=True)

    def message(self, text: str, *, style: str = "") -> None:
        """Print a line that stays."""
        self._console.print(Text(printable(text), style=style), soft_wrap=True)

    def warn(self, text: str) -> None:
        """Print a warning that stays."""
        self.message(f"warning: {text}", style="yellow")

    def stop(self) -> None:
        """Remove the panel; the last step stays as a line."""
        if self._live is not None:
            self._live.stop()
            self._live = None
            if self._row:
                self._console.print(Text(self._line(self._row)), soft_wrap=True)

    def _line(self, row: Mapping[str, float]) -> str:
        words = [
            f"step {row['step']:.0f}/{self._steps}",
            f"reward {row['reward_mean']:.3f}",
            f"success {row['success_rate']:.1%}",
            f"{row['trajectories_per_s']:.1f} trajectories/s",
            f"{row['tokens_per_s']:,.0f} {self._unit}/s",
            f"staleness {row['staleness_mean']:.2f} (max {row['staleness_max']:.0f})",
            f"step {row['step_s']:.2f} s (train {row['train_s']:.2f} s, "
            f"wait {row['trainer_wait_s']:.2f} s)",
            f"slots {row['slots_busy']:.0%} busy",
        ]
        if stood := row["engines_suspended_s"]:
            words.append(f"engines paused {stood:.2f} s")
        words += self._tasks(row)
        if wasted := row["wasted_tokens"]:
            words.append(f"wasted {wasted:,.0f} {self._unit} ({_short_causes(row)})")
        if left := self._left_s(row):
            words.append(f"{_clock(left)} left")
        return printable("  ".join(words))

    def _tasks(self, row: Mapping[str, float]) -> list[str]:
        """Return each task's success rate, if there are several tasks."""
        ends = "/success_rate"
        return [
            f"{name.removeprefix('tasks/').removesuffix(ends)} {value:.0%}"
            for name, value in row.items()
            if name.startswith("tasks/") and name.endswith(ends)
        ]

    def _left_s(self, row: Mapping[str, float]) -> float | None:
        if self._first is None or row["step"] <= self._first[0]:
            return None
        per_step = (row["time_s"] - self._first[1]) / (row["step"] - self._first[0])
        return per_step * (self._steps - row["step"]) or None

    def _panel(self) -> RenderableType:
        """Draw the panel; called in the display's thread, which only reads."""
        now, row, status = self._clock.now(), self._row, self._metrics.status
        head = Table.grid(padding=(0, 2))
        left = self._left_s(row) if row else None
        head.add_row(
            Text(printable(self._title), style="bold"),
            ProgressBar(total=self._steps, completed=status.step, width=30),
            f"step {status.step}/{self._steps}",
            _clock(now),
            f"{_clock(left)} left" if left else "",
        )
        body = Table.grid(padding=(0, 2))
        body.add_column(style="dim")
        for name, text in (
            *self._figures(row),
            *waits(status, now, wanted=self.waiting_for(), traffic=self._traffic()),
            *self._waste(),
        ):
            body.add_row(name, Text(printable(text)))
        return Group(head, body)

    def _traffic(self) -> Traffic | None:
        in_flight = self.in_flight()
        if not in_flight:
            return None
        idle = [each for each in self._metrics.serving if not in_flight.get(each)]
        return Traffic(requests=sum(in_flight.values()), idle=len(idle))

    def _figures(self, row: Mapping[str, float]) -> list[tuple[str, str]]:
        if not row:
            return []
        return [
            ("reward", f"{row['reward_mean']:.3f}   success {row['success_rate']:.1%}"),
            (
                "speed",
                f"{row['trajectories_per_s']:.1f} trajectories/s   "
                f"{row['tokens_per_s']:,.0f} {self._unit}/s   step {row['step_s']:.2f} s",
            ),
            *([("tasks", "   ".join(tasks))] if (tasks := self._tasks(row)) else []),
            ("staleness", f"{row['staleness_mean']:.2f} (max {row['staleness_max']:.0f})"),
        ]

    def _waste(self) -> list[tuple[str, str]]:
        ledger = self._metrics.ledger
        wasted = Counter(dict(ledger.wasted))
        if not wasted.total():
            return []
        causes = ", ".join(
            f"{cause} {count:,}" for cause, count in wasted.most_common(_MOST_CAUSES)
        )
        share = wasted.total() / max(1, ledger.sampled)
        return [("wasted", f"{share:.1%} of {self._unit}: {causes}")]


def waits(
    status: Status, now: float, *, wanted: str, traffic: Traffic | None = None
) -> list[tuple[str, str]]:
    """Return what each part does or waits for; `wanted` is what the next step waits for.

    `traffic` counts slots that wait for engines and slots in their environment; None if unknown.
    """
    since = status.training_since_s
    trainer = (
        f"waits for {wanted}; {status.waiting} trajectories in the buffer"
        if since is None
        else f"trains for {now - since:.1f} s"
    )
    return [
        ("trainer", trainer),
        ("engines", "; ".join(_engine_waits(status, traffic))),
        ("slots", "; ".join(_slot_waits(status, traffic))),
    ]


def _engine_waits(status: Status, traffic: Traffic | None) -> list[str]:
    serving = status.engines - status.suspended
    unasked = 0 if status.running else serving
    idle = unasked if traffic is None else min(traffic.idle, serving)
    words: list[str] = []
    if status.suspended:
        words.append(f"{status.suspended} of {status.engines} change weights")
    if serving > idle:
        asked = "" if traffic is None else f" {traffic.requests} requests"
        words.append(f"{serving - idle} serve{asked}")
    if idle:
        words.append(f"{idle} wait for requests")
    return words


def _slot_waits(status: Status, traffic: Traffic | None) -> list[str]:
    busy = f"{status.running} of {status.slots} busy"
    if traffic is not None and status.running:
        asking = min(traffic.requests, status.running)  # requests of an evaluation count too
        busy += f" ({asking} wait for engines, {status.running - asking} in environments)"
    idle = status.slots - status.running
    return [busy, *([f"{idle} wait for work to be admitted"] if idle else [])]


def _short_causes(row: Mapping[str, float]) -> str:
    """Return why a step's tokens were wasted, largest first, each cause by its last word."""
    causes: Counter[str] = Counter()
    for name, count in row.items():
        if name.startswith("wasted/"):
            causes[name.rpartition(":")[2]] += int(count)
    return ", ".join(f"{cause} {count:,}" for cause, count in causes.most_common(_MOST_CAUSES))


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
