"""Against TRL: the same tiny model and number-guessing game, all of the machine for each side.

Each side is a process of its own that prints one JSON line. TRL is first tried in every setting
(threads, processes, rollouts); its fastest meets ours in rounds that alternate the sides, so that
a busy neighbour hurts both alike. Ratios are medians over rounds.
"""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollart.errors import UserError

NAME = "trl"
LATENCY_S = 0.2
SMOOTHED_STEPS = 10
"""Steps over which a reward curve is averaged before it is compared."""
_ROOT = Path(__file__).resolve().parents[1]

Report = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One way to run a side."""

    side: str
    checkpoint: str
    rollout: str = ""
    threads: int = 1
    processes: int = 1

    lengthened: int = 1
    """How many times the steps it runs: work in flight when we start or end must not count much."""

    @property
    def label(self) -> str:
        """The setting in words."""
        name = self.rollout or self.side
        return f"{name}, {self.threads} threads, {self.processes} processes"


ROLLOUT_FUNC = (
    Setting(side="rollout_func_side", checkpoint="plain", rollout="cached"),
    Setting(side="rollout_func_side", checkpoint="plain", rollout="cached", threads=2),
    Setting(side="rollout_func_side", checkpoint="plain", rollout="cached", processes=2),
    Setting(side="rollout_func_side", checkpoint="plain", rollout="generate"),
)
ENVIRONMENT_FACTORY = (
    Setting(side="environment_factory_side", checkpoint="tool", rollout="tools"),
    Setting(side="environment_factory_side", checkpoint="tool", rollout="tools", processes=2),
)
ROLLART = Setting(side="rollart_side", checkpoint="plain", lengthened=6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long to measure."""

    rounds: int
    trial_steps: int
    steps_0ms: int
    steps_200ms: int
    learning_steps: int


QUICK = Effort(rounds=1, trial_steps=8, steps_0ms=20, steps_200ms=2, learning_steps=60)
FULL = Effort(rounds=5, trial_steps=25, steps_0ms=40, steps_200ms=4, learning_steps=300)


def run(*, quick: bool) -> dict[str, object]:
    """Measure both products; see the module's docstring."""
    if importlib.util.find_spec("trl") is None:
        raise UserError("bench trl needs trl 1.16: pip install 'rollart[bench]'")
    effort = QUICK if quick else FULL
    with tempfile.TemporaryDirectory(prefix="rollart-bench-trl-") as scratch:
        start = Path(scratch)
        _call(["-m", "benchmarks.trl_sides.start", str(start)], threads=1)
        fast, fast_trials = _fastest(ROLLOUT_FUNC, start, steps=effort.trial_steps, latency_s=0.0)
        slow, slow_trials = _fastest(ENVIRONMENT_FACTORY, start, steps=2, latency_s=LATENCY_S)
        at_0 = _duel(fast, start, effort.rounds, effort.steps_0ms, 0.0)
        at_200 = _duel(slow, start, max(1, effort.rounds // 2), effort.steps_200ms, LATENCY_S)
        curves = [_measure(s, start, effort.learning_steps, 0.0, 0) for s in (ROLLART, fast)]
    return {
        "over_rollout_func_0ms": at_0["ratio"],
        "over_environment_factory_200ms": at_200["ratio"],
        **compare_learning(*curves),
        "rollout_func_0ms": {**at_0, "trials": fast_trials},
        "environment_factory_200ms": {**at_200, "trials": slow_trials},
    }


def compare_learning(ours: Report, theirs: Report) -> dict[str, object]:
    """Return how much sooner we reach the highest mean reward that both reach.

    Both curves are averaged over `SMOOTHED_STEPS`; the mark lies nine tenths of the way from the
    higher of the two first values to the lower of the two best. None when neither rose above it.
    """
    own, other = _smooth(ours["reward"]), _smooth(theirs["reward"])
    floor, ceiling = max(own[0], other[0]), min(max(own), max(other))
    if ceiling <= floor:
        return {"time_to_reward_ratio": None, "reward_mark": None}
    mark = floor + 0.9 * (ceiling - floor)
    times_s = [
        report["wall_s"][next(i for i, value in enumerate(curve) if value >= mark)]
        for report, curve in ((ours, own), (theirs, other))
    ]
    return {
        "time_to_reward_ratio": times_s[1] / times_s[0],
        "reward_mark": mark,
        "rollart_to_mark_s": times_s[0],
        "trl_to_mark_s": times_s[1],
    }


def _smooth(values: Sequence[float]) -> list[float]:
    """Return the trailing mean; the first steps are averaged over what there is."""
    return [
        statistics.fmean(values[max(0, end - SMOOTHED_STEPS) : end])
        for end in range(1, len(values) + 1)
    ]


def _fastest(
    settings: Sequence[Setting], start: Path, *, steps: int, latency_s: float
) -> tuple[Setting, dict[str, float]]:
    """Try every setting once; return the fastest and all rates."""
    rates = {s: _measure(s, start, steps, latency_s, 0)["trained_per_s"] for s in settings}
    return max(rates, key=rates.__getitem__), {s.label: rate for s, rate in rates.items()}


def _duel(theirs: Setting, start: Path, rounds: int, steps: int, latency_s: float) -> Report:
    """Alternate the sides; return the median ratio of rates, and what each side did."""
    pairs: list[tuple[Report, Report]] = []
    for seed in range(rounds):
        order = (ROLLART, theirs) if seed % 2 == 0 else (theirs, ROLLART)
        done = {s.side: _measure(s, start, steps * s.lengthened, latency_s, seed) for s in order}
        pairs.append((done[ROLLART.side], done[theirs.side]))
    ratios = [ours["trained_per_s"] / trl["trained_per_s"] for ours, trl in pairs]
    return {
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "trl_setting": theirs.label,
        "rollart": _summary([ours for ours, _ in pairs]),
        "trl": _summary([trl for _, trl in pairs]),
    }


def _summary(reports: Sequence[Report]) -> dict[str, float]:
    """Return the median of every figure over rounds."""
    figures = [key for key, value in reports[0].items() if isinstance(value, int | float)]
    return {key: statistics.median(report[key] for report in reports) for key in figures}


def _measure(setting: Setting, start: Path, steps: int, latency_s: float, seed: int) -> Report:
    """Run one side and return its report."""
    module = ["-m", f"benchmarks.trl_sides.{setting.side}", str(start / setting.checkpoint)]
    options = ["--steps", str(steps), "--latency-s", str(latency_s), "--seed", str(seed)]
    if setting.rollout:
        options += ["--rollout", setting.rollout, "--threads", str(setting.threads)]
    launcher: list[str] = []
    if setting.processes > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone"]
        launcher += ["--nproc-per-node", str(setting.processes)]
    return json.loads(_call([*launcher, *module, *options], threads=setting.threads))


def _call(arguments: Sequence[str], *, threads: int) -> str:
    """Run a Python process from the repository's root; return the last line it printed."""
    silence = {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    environment = {**os.environ, **silence, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=_ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(arguments)} failed:\n{done.stderr}")
    return done.stdout.strip().splitlines()[-1]
