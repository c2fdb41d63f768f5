"""Plots: a run's learning curve and the utilisation of its parts over time, as PNG files.

A plot that cannot be written completely is removed, so a file that exists is a whole picture.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rollart.errors import StorageError
from rollart.observe.metrics import Row

_MINUTE_S = 60
_BACKGROUND = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
"""Background that keeps a label readable where lines cross it."""


def plot_learning_curve(
    path: Path, rows: Sequence[Row], *, title: str, unit: str = "tokens"
) -> None:
    """Draw success, reward, staleness, speed and evaluations.

    Success and reward are one curve if they are equal at every step. `unit` is what costs count.
    """
    steps = [row for row in rows if "reward_mean" in row]
    evaluations = [row for row in rows if "eval/success_rate" in row]
    figure = _new_figure(figsize=(8, 8))
    learning, staleness, speed = figure.subplots(3, 1, sharex=True, height_ratios=(3, 1, 1))
    figure.suptitle(title)
    is_one = all(row["reward_mean"] == row["success_rate"] for row in steps)
    if not is_one:
        _draw_smoothed(learning, steps, "reward_mean", "reward", "tab:blue")
    label = "success, which is the reward" if is_one else "success"
    _draw_smoothed(learning, steps, "success_rate", label, "tab:green")
    _draw_evaluations(learning, evaluations)
    learning.grid(alpha=0.3)
    if learning.get_legend_handles_labels()[0]:
        learning.legend(loc="best")
    _draw(staleness, steps, "staleness_mean", "mean", "tab:orange")
    _draw(staleness, steps, "staleness_max", "max", "tab:red")
    staleness.set_ylabel("staleness")
    staleness.set_ylim(bottom=0)
    staleness.legend(loc="lower right", ncols=2)
    _draw(speed, steps, "tokens_per_s", f"{unit}/s", "tab:gray")
    speed.set_ylabel(f"{unit}/s")
    speed.set_ylim(bottom=0)
    speed.set_xlabel("optimizer steps")
    _save(figure, path)


def plot_loss_curve(path: Path, rows: Sequence[Row], *, title: str) -> None:
    """Draw the loss and the evaluations of a run that learns from demonstrations."""
    steps = [row for row in rows if "loss" in row]
    evaluations = [row for row in rows if "eval/success_rate" in row]
    figure = _new_figure(figsize=(8, 6))
    success, loss = figure.subplots(2, 1, sharex=True)
    figure.suptitle(title)
    _draw_evaluations(success, evaluations)
    success.set_ylim(0, 1)
    success.grid(alpha=0.3)
    _draw(loss, steps, "loss", "loss", "tab:blue")
    loss.set_ylabel("loss")
    loss.set_xlabel("optimizer steps")
    if all(row["loss"] > 0 for row in steps):
        loss.set_yscale("log")
    _save(figure, path)


def moving_average(values: Sequence[float], *, window: int) -> list[float]:
    """Return the mean of each value and up to `window - 1` before it."""
    averages: list[float] = []
    total = 0.0
    for index, value in enumerate(values):
        total += value
        if index >= window:
            total -= values[index - window]
        averages.append(total / min(index + 1, window))
    return averages


def _new_figure(*, figsize: tuple[float, float]) -> Any:
    from matplotlib.figure import Figure  # noqa: PLC0415 slow to import: workers draw nothing

    return Figure(figsize=figsize, layout="constrained")


def _draw(axes: Any, rows: Sequence[Row], key: str, label: str, color: str) -> None:
    axes.plot([row["step"] for row in rows], [row[key] for row in rows], color=color, label=label)
    axes.grid(alpha=0.3)


def _draw_smoothed(axes: Any, rows: Sequence[Row], key: str, label: str, color: str) -> None:
    if not rows:
        return
    steps, values = [row["step"] for row in rows], [row[key] for row in rows]
    axes.plot(steps, values, color=color, alpha=0.25, linewidth=1)
    smooth = moving_average(values, window=max(2, len(rows) // 20))
    axes.plot(steps, smooth, color=color, linewidth=2, label=f"{label} (training)")


def _draw_evaluations(axes: Any, rows: Sequence[Row]) -> None:
    if not rows:
        return
    steps, rates = [row["step"] for row in rows], [row["eval/success_rate"] for row in rows]
    line = "k--o" if len(rows) > 2 else "ko"  # two points show no trend
    axes.plot(steps, rates, line, label="success (held-out)")
    for step, rate in zip(steps, rates, strict=True):
        axes.annotate(
            f"{rate:.3f}",
            (step, rate),
            xytext=(0, -16),
            textcoords="offset points",
            ha="center",
            bbox=_BACKGROUND,
        )


def plot_utilisation(
    path: Path, series: Mapping[str, tuple[float, Sequence[float]]], *, title: str
) -> None:
    """Draw how busy each part was over time; a part has a bin width and a busy share per bin."""
    figure = _new_figure(figsize=(9, 1.2 + 1.4 * len(series)))
    panels = figure.subplots(len(series), 1, sharex=True, squeeze=False)[:, 0]
    figure.suptitle(title)
    for axes, (name, (width_s, shares)) in zip(panels, series.items(), strict=True):
        edges = [number * width_s / _MINUTE_S for number in range(len(shares) + 1)]
        axes.stairs(shares, edges, fill=True, color="tab:blue", alpha=0.7)
        axes.set_ylim(0, 1)
        axes.set_ylabel(name)
        axes.grid(alpha=0.3)
    panels[-1].set_xlabel("minutes")
    _save(figure, path)


def _save(figure: Any, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120)
    except OSError as error:
        with suppress(OSError):  # remove the incomplete picture
            path.unlink()
        raise StorageError(f"{path}: the plot cannot be written: {error}") from error
