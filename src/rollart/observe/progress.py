"""Progress: what a person sees while a run goes on.

On a terminal one live panel: step, reward, success, speed, staleness, what each part waits for,
where tokens were wasted, time left. Elsewhere one line per step. Messages appear above the panel
and stay.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import IO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rollart.clock import SystemClock
from rollart.observe.metrics import Metrics, Status

REFRESH_PER_S = 2


class Progress:
    """Shows a run; silent parts of the program report through it."""

    def __init__(self, metrics: Metrics, *, steps: int, title: str, file: IO[str]) -> None:
        self._metrics = metrics
        self._steps = steps
        self._title = title
        self._console = Console(file=file, highlight=False)
        self.waiting_for: Callable[[], str] = lambda: "groups"
        """What the next optimizer step lacks; the driver puts its own answer here."""
        self._live: Live | None = None
        self._row: Mapping[str, float] = {}
        self._first: tuple[int, float] | None = None
        self._clock = SystemClock()

    def start(self) -> None:
        """Begin to show; on a terminal the live panel appears."""
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._panel,
                console=self._console,
                refresh_per_second=REFRESH_PER_S,
                transient=True,
            )
            self._live.start()

    def tick(self, now: float) -> None:
        """Set the run's time; the panel goes on from there by itself, events or not."""
        self._clock = SystemClock(now)

    def step(self, row: Mapping[str, float]) -> None:
        """Show a finished step."""
        self._row = row
        if self._first is None:
            self._first = (int(row["step"]), row["time_s"])
        if self._live is None:
            self._console.print(self._line(row), soft_wrap=True)

    def message(self, text: str, *, style: str = "") -> None:
        """Print a line that stays."""
        self._console.print(Text(text, style=style), soft_wrap=True)

    def warn(self, text: str) -> None:
        """Print a warning that stays."""
        self.message(f"warning: {text}", style="yellow")

    def stop(self) -> None:
        """Remove the panel; the last step stays as a line."""
        if self._live is not None:
            self._live.stop()
            self._live = None
            if self._row:
                self._console.print(self._line(self._row), soft_wrap=True)

    def _line(self, row: Mapping[str, float]) -> str:
        words = [
            f"step {row['step']:.0f}/{self._steps}",
            f"reward {row['reward_mean']:.3f}",
            f"success {row['success_rate']:.1%}",
            f"{row['trajectories_per_s']:.1f} trajectories/s",
            f"{row['tokens_per_s']:,.0f} tokens/s",
            f"staleness {row['staleness_mean']:.2f} (max {row['staleness_max']:.0f})",
            f"step {row['step_s']:.2f} s (train {row['train_s']:.2f} s)",
        ]
        words += self._tasks(row)
        if wasted := row["wasted_tokens"]:
            words.append(f"wasted {wasted:,.0f} tokens")
        if left := self._left_s(row):
            words.append(f"{_clock(left)} left")
        return "  ".join(words)

    def _tasks(self, row: Mapping[str, float]) -> list[str]:
        """Say how each task went, where there are several."""
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
        """Draw the panel; runs in the display's thread and only reads."""
        now, row, status = self._clock.now(), self._row, self._metrics.status
        head = Table.grid(padding=(0, 2))
        left = self._left_s(row) if row else None
        head.add_row(
            Text(self._title, style="bold"),
            ProgressBar(total=self._steps, completed=status.step, width=30),
            f"step {status.step}/{self._steps}",
            _clock(now),
            f"{_clock(left)} left" if left else "",
        )
        body = Table.grid(padding=(0, 2))
        body.add_column(style="dim")
        for name, text in (
            *self._figures(row),
            *waits(status, now, wanted=self.waiting_for()),
            *self._waste(),
        ):
            body.add_row(name, text)
        return Group(head, body)

    def _figures(self, row: Mapping[str, float]) -> list[tuple[str, str]]:
        if not row:
            return []
        return [
            ("reward", f"{row['reward_mean']:.3f}   success {row['success_rate']:.1%}"),
            (
                "speed",
                f"{row['trajectories_per_s']:.1f} trajectories/s   "
                f"{row['tokens_per_s']:,.0f} tokens/s   step {row['step_s']:.2f} s",
            ),
            *([("tasks", "   ".join(tasks))] if (tasks := self._tasks(row)) else []),
            ("staleness", f"{row['staleness_mean']:.2f} (max {row['staleness_max']:.0f})"),
        ]

    def _waste(self) -> list[tuple[str, str]]:
        ledger = self._metrics.ledger
        wasted = Counter(dict(ledger.wasted))
        if not wasted.total():
            return []
        causes = ", ".join(f"{cause} {count:,}" for cause, count in wasted.most_common(4))
        share = wasted.total() / max(1, ledger.sampled)
        return [("wasted", f"{share:.1%} of tokens: {causes}")]


def waits(status: Status, now: float, *, wanted: str) -> list[tuple[str, str]]:
    """Say what each part does or waits for; `wanted` is what the next step lacks."""
    since = status.training_since_s
    trainer = (
        f"waits for {wanted}; {status.waiting} trajectories in the buffer"
        if since is None
        else f"trains for {now - since:.1f} s"
    )
    engines = (
        f"{status.suspended} of {status.engines} change weights"
        if status.suspended
        else f"{status.engines} serve"
    )
    idle = status.slots - status.running
    slots = f"{status.running} of {status.slots} busy"
    if idle:
        slots += f"; {idle} wait for work to be admitted"
    return [("trainer", trainer), ("engines", engines), ("slots", slots)]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
