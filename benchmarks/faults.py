"""Of 16 environments one hung for ever, one 20 times slower, one crashing at random.

A fault belongs to its slot: a replaced environment in that slot has it again. Three runs of the
same config alternate: healthy; faulty, with spare slots standing in for those that rest after a
failure (the default); faulty without spares, so that three of the 16 slots stay faulty for ever.
Every run is counted whole, from its first launch to the end of its last step, because with spares
faults are met mostly in the first seconds. What happened in the faulty slots is reported; a run
that met no fault is an error.

- `kept`, `kept_without_spares`: the faulty run's speed over the healthy one's, median of rounds
- `lost`, `trained_twice`: over all runs

Plain: 2 rounds of 24 optimizer steps a run. `--full`: 3 rounds of 40 steps. `--quick`: 1 of 16.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.live_runs.timed import Timed, lake_config, run_live, say
from rollart.cli.bench import Effort

NAME = "faults"
FAULTY_SLOTS = {"hung": 3, "slow": 7, "crashing": 11}


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One run of each kind."""

    healthy: Timed
    spares: Timed
    no_spares: Timed

    @property
    def rates(self) -> dict[str, float]:
        """Trained trajectories a second of each run."""
        return {
            "healthy": round(self.healthy.trained_per_s_of_all, 2),
            "faulty": round(self.spares.trained_per_s_of_all, 2),
            "faulty_without_spares": round(self.no_spares.trained_per_s_of_all, 2),
        }


def _run(steps: int, *overrides: str, faulty: bool) -> Timed:
    faults = {fault: [slot] for fault, slot in FAULTY_SLOTS.items()} if faulty else {}
    config = lake_config(
        f"run.steps={steps}",
        "run.environments=16",
        "batching.groups_per_step=8",
        "batching.group_size=4",
        "staleness.alpha=2",
        "redundancy.hedge_after=3.0",
        "redundancy.extra_groups=2",
        "retry.backoff_s=0.25",
        "tasks.lake.step_timeout_s=5.0",
        *overrides,
        mean_s=0.1,
        deviation_s=0.03,
        **faults,
    )
    return run_live(config)


def run(*, effort: Effort) -> dict[str, object]:
    rounds: list[Round] = []
    count, steps = {"quick": (1, 16), "plain": (2, 24), "full": (3, 40)}[effort]
    for number in range(count):
        done = Round(
            healthy=_run(steps, faulty=False),
            spares=_run(steps, faulty=True),
            no_spares=_run(steps, "retry.spares=false", faulty=True),
        )
        rounds.append(done)
        say(f"round {number + 1}: {done.rates}")
        say(f"  with spares {endings(done.spares)}; without {endings(done.no_spares)}")
    return report(rounds)


def report(rounds: Sequence[Round]) -> dict[str, object]:
    """Return the figures of all rounds."""
    runs = [run for each in rounds for run in (each.healthy, each.spares, each.no_spares)]
    return {
        "kept": _kept([(each.spares, each.healthy) for each in rounds]),
        "kept_without_spares": _kept([(each.no_spares, each.healthy) for each in rounds]),
        "lost": sum(run.proof["lost"] for run in runs),
        "trained_twice": sum(run.proof["trained_twice"] for run in runs),
        "trained_per_s": [each.rates for each in rounds],
        "in_faulty_slots": [endings(each.spares) for each in rounds],
        "in_faulty_slots_without_spares": [endings(each.no_spares) for each in rounds],
    }


def endings(timed: Timed) -> dict[str, dict[str, int]]:
    """Return what happened in each faulty slot; raise where the run met no fault."""
    found = {fault: timed.endings(slot) for fault, slot in FAULTY_SLOTS.items()}
    if not all(each["launches"] for each in found.values()):
        raise RuntimeError(f"a faulty slot was never used: {found}")
    if not any(each["failures"] for each in found.values()):
        raise RuntimeError(f"nothing failed in the faulty slots: {found}")
    return found


def _kept(pairs: Sequence[tuple[Timed, Timed]]) -> float:
    ratios = [one.trained_per_s_of_all / other.trained_per_s_of_all for one, other in pairs]
    return round(median(ratios), 3)
