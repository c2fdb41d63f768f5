"""The five modes live, side by side: trained trajectories a second with slow environments.

Every mode has the same number of concurrent environments, the same model and batch. A step of an
environment takes normal(mean, deviation) clamped at 0. `pace_over_drop` compares two choices at the
staleness bound: waiting a while for work about to become too old, and dropping it; the default,
`finish`, does neither.
The first steps are not counted. In modes that work ahead the last ones are not counted either: such
a mode has work in flight when the count begins, and must have as much when it ends. `one_off` works
one step ahead, `areal` and `rollart` alpha + 1; `sync` and `sync_plus` have nothing in flight
between steps.

`trajectory_over_lockstep` compares rollout alone, and one thing only: a batch of 128 episodes of 32
turns, from its first launch to its last end, with all environments stepping together (`sync`) and
each by itself (`sync_plus`). Nothing is launched beyond the batch, nothing is trained beside it. A
run plays a short batch to warm up, then one batch for every deviation.

Plain: one round of all modes, one run of each rollout. `--full`: three rounds with more steps, four
runs of each rollout. `--quick`: one round with the fewest steps, two deviations.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from benchmarks.live_runs.timed import lake_config, run_live, say
from rollart.cli.bench import Effort

NAME = "modes"
ALPHA = 1
MEAN_S = 0.25
RATIOS = (0.1, 0.3, 0.5, 0.7, 1.0)
ENVIRONMENTS = 64
ROLLOUT = {"environments": 128, "turns": 32, "mean_s": 0.15, "sampled_tokens": 8}
"""Episodes as long as the paper's FrozenLake (20 to 100 turns); a turn's sampling takes less than
its environment.
"""
GROUP_SIZE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Optimizer steps of a run: first ones that warm up, counted ones, last ones left out."""

    warm_up: int
    counted: int
    left_out: int
    """Nothing new is started any more while these are made."""

    @property
    def total(self) -> int:
        """All steps of the run."""
        return self.warm_up + self.counted + self.left_out


def _steps(sync: int, sync_plus: int, one_off: int, areal: int, rollart: int) -> dict[str, Steps]:
    """Return every mode's steps from how many count: the quicker the mode, the more."""
    return {
        "sync": Steps(warm_up=1, counted=sync, left_out=0),
        "sync_plus": Steps(warm_up=1, counted=sync_plus, left_out=0),
        "one_off": Steps(warm_up=1, counted=one_off, left_out=1),
        "areal": Steps(warm_up=ALPHA + 1, counted=areal, left_out=ALPHA + 1),
        "rollart": Steps(warm_up=ALPHA + 1, counted=rollart, left_out=ALPHA + 1),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Edition:
    """How much is measured."""

    rounds: int
    steps: Mapping[str, Steps]
    rollouts: int
    ratios: tuple[float, ...] = RATIOS


EDITIONS: dict[Effort, Edition] = {
    "quick": Edition(rounds=1, steps=_steps(1, 1, 1, 1, 1), rollouts=1, ratios=(0.1, 0.5)),
    "plain": Edition(rounds=1, steps=_steps(2, 2, 2, 2, 4), rollouts=1),
    "full": Edition(rounds=3, steps=_steps(5, 6, 6, 15, 15), rollouts=4),
}


def _trained_per_s(mode: str, *overrides: str, steps: Steps) -> float:
    config = lake_config(
        f"run.mode={mode}",
        f"run.steps={steps.total}",
        f"run.environments={ENVIRONMENTS}",
        f"staleness.alpha={ALPHA}",
        f"batching.groups_per_step={ENVIRONMENTS // GROUP_SIZE}",
        f"batching.group_size={GROUP_SIZE}",
        *overrides,
        mean_s=MEAN_S,
        deviation_s=MEAN_S,
    )
    return run_live(config).trained_per_s(warm_up=steps.warm_up, left_out=steps.left_out)


def _rollouts_s(mode: str, ratios: Sequence[float]) -> list[float]:
    """Return the time of a batch's rollout by ratio of deviation to mean, all in one run."""
    turns, mean_s = int(ROLLOUT["turns"]), ROLLOUT["mean_s"]
    groups = int(ROLLOUT["environments"]) // GROUP_SIZE
    config = lake_config(
        f"run.mode={mode}",
        f"run.steps={1 + len(ratios)}",
        f"run.environments={ROLLOUT['environments']}",
        f"batching.groups_per_step={groups}",
        f"batching.group_size={GROUP_SIZE}",
        f"sampling.max_tokens={ROLLOUT['sampled_tokens']}",
        f"tasks.lake.max_turns={turns}",
    )
    warm_up = (4, 0.0)
    errands = replace(
        config.tasks["lake"],
        env="benchmarks.live_runs.judged:ErrandSeries",
        options={
            "series": [warm_up, *((turns, mean_s * ratio) for ratio in ratios)],
            "tasks_each": groups,
            "mean_s": mean_s,
        },
    )
    return run_live(replace(config, tasks={"lake": errands})).rollouts_s[1:]


def run(*, effort: Effort) -> dict[str, object]:
    edition = EDITIONS[effort]
    trained: dict[str, list[float]] = {mode: [] for mode in edition.steps}
    dropping: list[float] = []
    pacing: list[float] = []
    for number in range(edition.rounds):
        for mode, steps in edition.steps.items():
            rate = _trained_per_s(mode, steps=steps)
            trained[mode].append(rate)
            say(f"round {number + 1}: {mode} {rate:.1f} trained trajectories/s")
        for at_bound, rates in (("drop", dropping), ("pace", pacing)):
            override = f"staleness.at_bound={at_bound}"
            rate = _trained_per_s("rollart", override, steps=edition.steps["rollart"])
            rates.append(rate)
            say(f"round {number + 1}: rollart with {override} {rate:.1f}")
    over: dict[float, list[float]] = {ratio: [] for ratio in edition.ratios}
    for _ in range(edition.rollouts):
        lockstep, single = (_rollouts_s(mode, edition.ratios) for mode in ("sync", "sync_plus"))
        for ratio, slow_s, fast_s in zip(edition.ratios, lockstep, single, strict=True):
            over[ratio].append(slow_s / fast_s)
            say(f"deviation {ratio} of the mean: rollout {slow_s:.1f} s, {fast_s:.1f} s")
    return report(trained, dropping=dropping, pacing=pacing, over=over)


def report(
    trained: Mapping[str, Sequence[float]],
    *,
    dropping: Sequence[float],
    pacing: Sequence[float],
    over: Mapping[float, Sequence[float]],
) -> dict[str, object]:
    """Return the figures of all rounds: rates by mode, and ratios to lock-step by deviation."""
    return {
        "rollart_over_sync": _ratio(trained["rollart"], trained["sync"]),
        "rollart_over_sync_plus": _ratio(trained["rollart"], trained["sync_plus"]),
        "trajectory_over_lockstep": {str(r): round(median(each), 3) for r, each in over.items()},
        "trained_per_s": {mode: round(median(rates), 2) for mode, rates in trained.items()},
        "pace_over_drop": _ratio(pacing, dropping),
    }


def _ratio(rates: Sequence[float], others: Sequence[float]) -> float:
    return round(median(one / other for one, other in zip(rates, others, strict=True)), 3)
