"""Against TRL: the same tiny model and number-guessing game, all of the machine for each side.

Each side is a process of its own that prints one JSON line. Both are first tried in every setting:
TRL with one thread, with two that sleep when idle, with two that spin a while first, as two
processes, and with each rollout; ours with the same threads for its engine, its trainer keeping
one. A setting's rate is its best trial; where there are several they are taken in turns, so that a
busy neighbour does not choose. The fastest settings meet in rounds that alternate the sides, so
that it hurts both alike. Ratios are medians over rounds.

Without latency both sides make the same steps from the same checkpoint and the same ones count:
neither is measured better trained, with shorter games, than the other. With 200 ms a call a step of
TRL takes many seconds and few are made; ours makes more, because work in flight at the ends must
not count much. `zero_advantage` is the share of counted trajectories whose group earned all the
same: our trainer skips their passes, TRL computes them.

Plain: one trial of a setting; threads that spin are tried for `rollout_func` alone, and
`environment_factory` is tried with 50 ms a call. 2 rounds of 100 steps without latency, whose first
gives the reward curves; 1 round with latency, in which TRL makes 2 steps. `--full`: 3 trials of
every setting, with 200 ms; 5 rounds of 120 steps and 2 with latency, of 4 steps; reward curves of
300 steps. `--quick`: as plain with 1 round of 30 steps.
"""

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.live_runs.timed import say
from rollart.cli.bench import Effort
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
    checkpoint: str = "plain"
    rollout: str = ""
    threads: int = 1
    spins: bool = False
    """Whether threads with nothing to do spin a while before they sleep, as they do by default."""
    processes: int = 1

    @property
    def label(self) -> str:
        """The setting in words."""
        name = self.rollout or self.side
        waiting = " that spin" if self.spins else ""
        return f"{name}, {self.threads} threads{waiting}, {self.processes} processes"


_CACHED = Setting(side="rollout_func_side", rollout="cached")
_TOOLS = Setting(side="environment_factory_side", checkpoint="tool", rollout="tools")
_OURS = Setting(side="rollart_side")
ROLLOUT_FUNC = (
    _CACHED,
    replace(_CACHED, threads=2),
    replace(_CACHED, threads=2, spins=True),
    replace(_CACHED, processes=2),
    replace(_CACHED, rollout="generate"),
)
ENVIRONMENT_FACTORY = (
    _TOOLS,
    replace(_TOOLS, threads=2, spins=True),
    replace(_TOOLS, processes=2),
)
ROLLART = (_OURS, replace(_OURS, threads=2), replace(_OURS, threads=2, spins=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Edition:
    """How much is measured; pairs of steps are TRL's and ours."""

    rounds_0ms: int
    rounds_200ms: int
    trials: int
    trial_steps: int
    trial_latency_s: float
    """Latency with which TRL's slower side is tried: less takes less time and ranks alike."""
    steps_0ms: int
    steps_200ms: tuple[int, int]
    learning_steps: int = 0
    """Steps of the runs whose reward curves are compared; 0 compares those of the first round."""
    ours: tuple[Setting, ...] = ROLLART[:2]
    slow: tuple[Setting, ...] = (ENVIRONMENT_FACTORY[0], ENVIRONMENT_FACTORY[-1])
    """Settings of our side and of TRL's `environment_factory` that are tried."""


EDITIONS: dict[Effort, Edition] = {
    "quick": Edition(
        rounds_0ms=1,
        rounds_200ms=1,
        trials=1,
        trial_steps=8,
        trial_latency_s=LATENCY_S / 4,
        steps_0ms=30,
        steps_200ms=(2, 12),
    ),
    "plain": Edition(
        rounds_0ms=2,
        rounds_200ms=1,
        trials=1,
        trial_steps=8,
        trial_latency_s=LATENCY_S / 4,
        steps_0ms=100,
        steps_200ms=(2, 12),
    ),
    "full": Edition(
        rounds_0ms=5,
        rounds_200ms=2,
        trials=3,
        trial_steps=25,
        trial_latency_s=LATENCY_S,
        steps_0ms=120,
        steps_200ms=(4, 24),
        learning_steps=300,
        ours=ROLLART,
        slow=ENVIRONMENT_FACTORY,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The fastest setting of a side, and the rates of all."""

    best: Setting
    rates: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Duel:
    """What our side and TRL's did, round by round."""

    ours: Trial
    theirs: Trial
    pairs: tuple[tuple[Report, Report], ...]


def run(*, effort: Effort) -> dict[str, object]:
    """Measure both products; see the module's docstring."""
    if importlib.util.find_spec("trl") is None:
        raise UserError("bench trl needs trl 1.16: pip install 'rollart[bench]'")
    edition = EDITIONS[effort]
    with tempfile.TemporaryDirectory(prefix="rollart-bench-trl-") as scratch:
        start = Path(scratch)
        _call(["-m", "benchmarks.trl_sides.start", str(start)], Setting(side="start"))
        trials = {"trials": edition.trials, "steps": edition.trial_steps}
        ours = _try(edition.ours, start, **trials, latency_s=0.0)
        fast = _try(ROLLOUT_FUNC, start, **trials, latency_s=0.0)
        slow = _try(edition.slow, start, trials=1, steps=1, latency_s=edition.trial_latency_s)
        steps_0ms = (edition.steps_0ms, edition.steps_0ms)
        at_0 = [
            _meet(ours.best, fast.best, start, steps_0ms, 0.0, seed)
            for seed in range(edition.rounds_0ms)
        ]
        at_200 = [
            _meet(ours.best, slow.best, start, edition.steps_200ms, LATENCY_S, seed)
            for seed in range(edition.rounds_200ms)
        ]
        curves = at_0[0]
        if edition.learning_steps:
            learning_steps = (edition.learning_steps, edition.learning_steps)
            curves = _meet(ours.best, fast.best, start, learning_steps, 0.0, 0)
    return report(
        Duel(ours=ours, theirs=fast, pairs=tuple(at_0)),
        Duel(ours=ours, theirs=slow, pairs=tuple(at_200)),
        curves=curves,
    )


def report(at_0: Duel, at_200: Duel, *, curves: tuple[Report, Report]) -> dict[str, object]:
    """Return the figures of both duels and of the two learning curves, ours first."""
    without_latency, with_latency = compare_rates(at_0), compare_rates(at_200)
    return {
        "over_rollout_func_0ms": without_latency["ratio"],
        "over_environment_factory_200ms": with_latency["ratio"],
        **compare_learning(*curves),
        "rollout_func_0ms": without_latency,
        "environment_factory_200ms": with_latency,
    }


def compare_rates(duel: Duel) -> Report:
    """Return the median ratio of rates, and what each side did."""
    ratios = [ours["trained_per_s"] / trl["trained_per_s"] for ours, trl in duel.pairs]
    return {
        "ratio": statistics.median(ratios),
        "ratios": ratios,
        "rollart_setting": duel.ours.best.label,
        "trl_setting": duel.theirs.best.label,
        "rollart": _summary([ours for ours, _ in duel.pairs]),
        "trl": _summary([trl for _, trl in duel.pairs]),
        "rollart_trials": duel.ours.rates,
        "trl_trials": duel.theirs.rates,
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


def _try(
    settings: Sequence[Setting], start: Path, *, trials: int, steps: int, latency_s: float
) -> Trial:
    """Try the settings of a side in turns; the rate of each is its best."""
    rates = dict.fromkeys(settings, 0.0)
    for setting in list(settings) * trials:
        rate = _measure(setting, start, steps, latency_s, 0)["trained_per_s"]
        rates[setting] = max(rates[setting], rate)
    trial = Trial(
        best=max(rates, key=rates.__getitem__),
        rates={setting.label: rate for setting, rate in rates.items()},
    )
    say(f"tried {trial.rates}")
    return trial


def _meet(
    ours: Setting,
    theirs: Setting,
    start: Path,
    steps: tuple[int, int],
    latency_s: float,
    seed: int,
) -> tuple[Report, Report]:
    """Run both sides, ours first every second time; return what ours did, then TRL's."""
    sides = [(theirs, steps[0]), (ours, steps[1])]
    order = sides if seed % 2 else sides[::-1]
    done = {side.side: _measure(side, start, count, latency_s, seed) for side, count in order}
    pair = done[ours.side], done[theirs.side]
    say(f"round {seed + 1}, {latency_s} s: {[round(each['trained_per_s'], 1) for each in pair]}")
    return pair


def _summary(reports: Sequence[Report]) -> dict[str, float]:
    """Return the median of every figure over rounds."""
    figures = [key for key, value in reports[0].items() if isinstance(value, int | float)]
    return {key: statistics.median(report[key] for report in reports) for key in figures}


def _measure(setting: Setting, start: Path, steps: int, latency_s: float, seed: int) -> Report:
    """Run one side and return its report."""
    module = ["-m", f"benchmarks.trl_sides.{setting.side}", str(start / setting.checkpoint)]
    options = ["--steps", str(steps), "--latency-s", str(latency_s), "--seed", str(seed)]
    options += ["--threads", str(setting.threads)]
    if setting.rollout:
        options += ["--rollout", setting.rollout]
    launcher: list[str] = []
    if setting.processes > 1:
        launcher = ["-m", "torch.distributed.run", "--standalone"]
        launcher += ["--nproc-per-node", str(setting.processes)]
    return json.loads(_call([*launcher, *module, *options], setting))


def _call(arguments: Sequence[str], setting: Setting) -> str:
    """Run a Python process from the repository's root; return the last line it printed."""
    silence = {"TRL_EXPERIMENTAL_SILENCE": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}
    environment = {**os.environ, **silence, "OMP_NUM_THREADS": str(setting.threads)}
    environment["OMP_WAIT_POLICY"] = "PASSIVE"
    if setting.spins:
        del environment["OMP_WAIT_POLICY"]
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
