"""Which attempts are trained: does it depend on how they turned out, by mode and rule.

Two workloads, the live scheduler in simulated time (`bias_parts/worlds.py`):

- a two-armed bandit with the true gradient +0.025, whose better arm takes longer when it earns;
- episodes of lognormal length (sigma = 1, half of it by task).

Every rule schedules the same draws.

- `gradient`: the mean estimate by rule, over all trained groups; `standard_error` of each
- `gradient_first_finished`: the same where the first to finish are trained
  (`redundancy.choice = "finished"`), which is the paper's rule and known to be biased
- `is_exact`: by rule, whether the estimate is within two standard errors of +0.025
- `length_ratio`, `longest_tenth`: mean length trained over mean length played, and the trained
  share of the longest tenth played over a tenth, by rule
- `trained_per_s`, `oldest`: trained trajectories a simulated second; the greatest age, by rule
- `default_length_ratio`, `default_over_pace`: the default rule's ratio, and its speed over `pace`'s
- `live`: the default rule and `pace` in real runs (`bias_parts/live.py`)

Plain: 300 steps a rule, and 40 live ones. `--full`: 900 and 80. `--quick`: 80 and 10.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, sqrt
from statistics import fmean, stdev

from benchmarks.bias_parts.live import LiveFigures, measure
from benchmarks.bias_parts.worlds import TRUE_GRADIENT, Bandit, Lengths, Observed, simulate
from benchmarks.live_runs.timed import say
from rollart.cli.bench import Effort
from rollart.control.rules import MODES, Batching, Redundancy, Rules
from rollart.control.staleness import Staleness

NAME = "bias"
BATCHING = Batching(groups_per_step=8, group_size=8)
LIMIT_S = 25.0
"""Time limit of an episode in the rule "time_limit": most that pay on the better arm exceed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One schedule."""

    mode: str = "rollart"
    staleness: Staleness = Staleness()  # noqa: RUF009
    redundancy: Redundancy = Redundancy()  # noqa: RUF009
    limit_s: float = inf
    fails: float = 0.0

    def rules(self, steps: int) -> Rules:
        """Return what a scheduler decides by."""
        return Rules(
            steps=steps,
            mode=MODES[self.mode],
            batching=BATCHING,
            staleness=self.staleness,
            redundancy=self.redundancy,
        )


AT_BOUND: dict[str, Rule] = {
    "sync": Rule(mode="sync"),
    "sync_plus": Rule(mode="sync_plus"),
    "one_off": Rule(mode="one_off"),
    "areal": Rule(mode="areal"),
    "finish": Rule(),
    "wait": Rule(staleness=Staleness(at_bound="wait")),
    "pace": Rule(staleness=Staleness(at_bound="pace")),
    "drop": Rule(staleness=Staleness(at_bound="drop")),
}
"""The modes, and the rules at the staleness bound of the mode "rollart"; "finish" is the default.
"""
_GROUPS = Redundancy(extra_groups=4)
REDUNDANT: dict[str, Rule] = {
    **{
        f"extra_members={count}": Rule(redundancy=Redundancy(extra_members=count))
        for count in (1, 2, 4)
    },
    "extra_groups=4": Rule(redundancy=_GROUPS),
    "sync_plus extra_groups=4": Rule(mode="sync_plus", redundancy=_GROUPS),
    "hedge_after=1.5": Rule(redundancy=Redundancy(hedge_after=1.5)),
    "time_limit": Rule(limit_s=LIMIT_S),
    "failures": Rule(fails=0.1),
    "failures extra_members=2": Rule(fails=0.1, redundancy=Redundancy(extra_members=2)),
}
FIRST_FINISHED: dict[str, Rule] = {
    **{
        f"extra_members={count}": Rule(
            redundancy=Redundancy(extra_members=count, choice="finished")
        )
        for count in (1, 2, 4)
    },
    "sync_plus extra_groups=4": Rule(
        mode="sync_plus", redundancy=Redundancy(extra_groups=4, choice="finished")
    ),
}
LENGTHS: dict[str, Rule] = {
    **AT_BOUND,
    "extra_groups=4": Rule(redundancy=_GROUPS),
    "pace extra_groups=4": Rule(staleness=Staleness(at_bound="pace"), redundancy=_GROUPS),
}


def run(*, effort: Effort) -> dict[str, object]:
    steps, live_steps = {"quick": (80, 10), "plain": (300, 40), "full": (900, 80)}[effort]
    bandits = _measure({**AT_BOUND, **REDUNDANT}, _play_bandit, steps=steps)
    finished = _measure(FIRST_FINISHED, _play_bandit, steps=steps)
    lengths = _measure(LENGTHS, _play_lengths, steps=steps)
    live = {
        "finish": measure(steps=live_steps),
        "pace": measure(steps=live_steps, at_bound="pace"),
    }
    say(f"live: {live}")
    return report(bandits, finished=finished, lengths=lengths, live=live)


def _play_bandit(rule: Rule, steps: int) -> Observed:
    return simulate(Bandit(seed=1, limit_s=rule.limit_s, fails=rule.fails), rule.rules(steps))


def _play_lengths(rule: Rule, steps: int) -> Observed:
    return simulate(Lengths(seed=1), rule.rules(steps))


def _measure(
    rules: Mapping[str, Rule], play: Callable[[Rule, int], Observed], *, steps: int
) -> dict[str, Observed]:
    found: dict[str, Observed] = {}
    for name, rule in rules.items():
        found[name] = each = play(rule, steps)
        say(
            f"{name}: gradient {fmean(each.gradients):+.4f}, length {each.length_ratio:.3f}, "
            f"{each.per_s:.3f} trained/s, oldest {max(each.ages)}"
        )
    return found


def report(
    bandits: Mapping[str, Observed],
    *,
    finished: Mapping[str, Observed],
    lengths: Mapping[str, Observed],
    live: Mapping[str, LiveFigures],
) -> dict[str, object]:
    """Return the figures of all rules."""
    gradient = {name: fmean(each.gradients) for name, each in bandits.items()}
    error = {name: standard_error(each.gradients) for name, each in bandits.items()}
    return {
        "gradient": _rounded(gradient),
        "standard_error": _rounded(error),
        "is_exact": {
            name: abs(gradient[name] - TRUE_GRADIENT) <= 2 * error[name] for name in gradient
        },
        "gradient_first_finished": _rounded(
            {name: fmean(each.gradients) for name, each in finished.items()}
        ),
        "length_ratio": _rounded({name: each.length_ratio for name, each in lengths.items()}),
        "longest_tenth": _rounded({name: each.longest_tenth for name, each in lengths.items()}),
        "trained_per_s": _rounded({name: each.per_s for name, each in lengths.items()}),
        "oldest": {name: max(each.ages) for name, each in lengths.items()},
        "default_length_ratio": round(lengths["finish"].length_ratio, 4),
        "default_over_pace": round(lengths["finish"].per_s / lengths["pace"].per_s, 4),
        "live": {
            "length_ratio": _rounded({name: each.length_ratio for name, each in live.items()}),
            "default_over_pace": round(
                live["finish"].trained_per_s / live["pace"].trained_per_s, 4
            ),
            "oldest": {name: each.oldest for name, each in live.items()},
        },
    }


def standard_error(values: list[float]) -> float:
    """Return the standard error of a mean.

    Example:
        >>> standard_error([1.0, 3.0])
        1.0

    """
    return stdev(values) / sqrt(len(values))


def _rounded(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in figures.items()}
