"""Print where a quickstart's time went and what it came to.

Arguments: the config, the seconds of installation, the seconds of `rollart train`. The run's
`summary.json` splits the latter in `seconds`, whose parts do not overlap.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rollart.config import load_config
from rollart.observe.trackers import read_rows

PARTS = {"model": "model and warm start", "start": "starting trainer and engine"}
RESULTS = {"greedy": "greedy_success_", "sampled": "success_"}
"""Kinds of success, and what their figures in an evaluation begin with."""


def main(config: str, install_s: str, train_s: str) -> None:
    """Print the table and the result."""
    directory = load_config(config).run.path
    summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    seconds: dict[str, float] = summary["seconds"]
    parts = {"installation": float(install_s)}
    parts |= {PARTS.get(name, name): value for name, value in seconds.items()}
    parts["everything else"] = max(0.0, float(train_s) - sum(seconds.values()))
    lines = ["", "where the time went"]
    lines += [f"  {name:<28}{value:8.1f} s" for name, value in parts.items()]
    lines += [f"  {'in all':<28}{sum(parts.values()):8.1f} s", ""]
    lines += [*results(summary), *curve(directory / "metrics.jsonl")]
    lines.append(f"{'files':<16}{directory}/")
    sys.stdout.write("\n".join(lines) + "\n")


def results(summary: dict[str, Any]) -> Iterator[str]:
    """Yield the success of the first and the last evaluation, with 95 % intervals."""
    for when in ("before", "after"):
        figures: dict[str, float] = summary.get(when) or {}
        for kind, begin in RESULTS.items():
            rate = figures.get(f"{begin}rate")
            if rate is not None:
                low, high = figures[f"{begin}low"], figures[f"{begin}high"]
                problems = f"{figures['problems']:.0f} held-out problems"
                interval = f"95 % interval {low:.3f} to {high:.3f}"
                yield f"{f'{kind} {when}':<16}{rate:.3f}   {interval}, {problems}"
        if not figures:
            yield f"{f'success {when}':<16}not measured"


def curve(metrics: Path) -> Iterator[str]:
    """Yield the success of every evaluation by step, if there were any on the way."""
    rows = [row for row in read_rows(metrics) if "eval/success_rate" in row]
    if len(rows) > 2:
        points = [f"{row['step']:.0f}: {row['eval/success_rate']:.3f}" for row in rows]
        yield f"{'by step':<16}{'  '.join(points)}"


if __name__ == "__main__":
    main(*sys.argv[1:])
