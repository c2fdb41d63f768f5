"""Print where a quickstart's time went and what it came to.

Arguments: the config, the seconds of installation, the seconds of `rollart train`. The run's
`summary.json` may split the latter in `seconds`, an object by part.
"""

import json
import sys

from rollart.config import load_config

PARTS = {"model": "model and warm start", "start": "starting trainer and engine"}


def main(config: str, install_s: str, train_s: str) -> None:
    """Print the table and the result."""
    directory = load_config(config).run.path
    summary = json.loads((directory / "summary.json").read_text(encoding="utf-8"))
    parts = {"installation": float(install_s)}
    seconds = summary.get("seconds", {})
    parts |= {PARTS.get(name, name): float(value) for name, value in seconds.items()}
    rest = float(train_s) - sum(seconds.values())
    parts["everything else"] = max(0.0, rest)
    lines = ["", "where the time went"]
    lines += [f"  {name:<28}{value:8.1f} s" for name, value in parts.items()]
    lines += [f"  {'in all':<28}{float(install_s) + float(train_s):8.1f} s", ""]
    for name in ("success_before", "success_after"):
        if name in summary:
            lines.append(f"{name.replace('_', ' '):<16}{summary[name]:.3f}")
    lines.append(f"files           {directory}/")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
