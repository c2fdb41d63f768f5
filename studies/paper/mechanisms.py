"""Experiments on single mechanisms: lock-step, redundancy, rewards, weights, disaggregation.

Each looks at the rollout of one batch, not at a whole run.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from rollart.config.simulation import ScoringOptions
from rollart.sim.from_config import SWE, lognormal
from rollart.sim.workload import Latency, TaskProfile
from studies.paper.rows import Kind, PaperRow, Runs
from studies.paper.setup import GROUP_SIZE, GROUPS, SIZES, TP, Setup, testbed

_LOCKSTEP = {1: 1.23, 3: 1.51, 5: 1.69, 7: 2.18, 10: 2.27}
_TURN_S = 10.0
_REDUNDANCY = {
    (34, 8): 1.16,
    (36, 8): 1.30,
    (32, 10): 1.11,
    (34, 10): 1.38,
    (36, 10): 1.52,
    (32, 12): 1.24,
    (34, 12): 1.51,
    (36, 12): 1.62,
}
_FITTED_REDUNDANCY = {(36, 8), (32, 12)}
_BATCH_GROUPS = 32
_SWE_GROUPS = 16
"""The paper's batch of SWE alone: 128 attempts."""
_WEIGHTS: dict[str, tuple[float, float, float]] = {
    "8B": (32.4, 6.2, 1.4),
    "14B": (67.8, 16.3, 5.1),
    "32B": (127.3, 29.7, 9.6),
}
_DISAGGREGATION = {
    "32B": {(1, 3): 1.03, (2, 2): 1.05},
    "30B-A3B": {(1, 3): 1.11, (2, 2): 1.21},
}
_UNITS = ((1, 3), (2, 2), (3, 1))
_AGENT = replace(SWE, reset=Latency(), score=None, samples=300, samples_spread=0.1, reads=100)
"""A task for lock-step: many turns, an environment of given latency."""
_SLOW_RESETS = replace(SWE, reset=lognormal(400.0, 0.17), reset_spread=0.31, score=None)
"""A task for redundancy: resets of hundreds of seconds, alike within a group."""
_JUDGED = replace(SWE, reset=lognormal(2.0), step=lognormal(0.1), score=lognormal(1.6))
"""A task for rewards: its rollout is bound by its GPUs, and a judge scores it."""
_DEDICATED = ScoringOptions(kind="dedicated", max_instances=4)
_ELASTIC = ScoringOptions(kind="elastic", max_instances=64, cold_start_s=0.1, idle_s=0.15)


def lockstep_rows(runs: Runs) -> Iterator[PaperRow]:
    """Compare rollout in lock-step with rollout per trajectory, by the environment's spread."""
    for sigma, paper in _LOCKSTEP.items():
        step = Latency(kind="normal", mean_s=_TURN_S, spread=sigma / _TURN_S)
        setup = _rollout(_AGENT, groups=_SWE_GROUPS, compute=24)
        setup = replace(setup, tasks=(replace(_AGENT, step=step),), reuse_prefixes=True)
        yield PaperRow(
            name=f"rollout, lock-step over per trajectory, sigma {sigma} s",
            paper_low=paper,
            paper_high=paper,
            simulated=runs.rollout_s(replace(setup, lockstep=True)) / runs.rollout_s(setup),
            kind="fitted" if sigma == 1 else "predicted",
        )


def redundancy_rows(gains: Mapping[tuple[int, int], float]) -> Iterator[PaperRow]:
    """Compare rollouts that start more groups, or larger ones, than the batch needs."""
    for (groups, size), paper in _REDUNDANCY.items():
        kind: Kind = "fitted" if (groups, size) in _FITTED_REDUNDANCY else "predicted"
        yield PaperRow(
            name=f"redundancy, {groups} groups of {size} over 32 of 8",
            paper_low=paper,
            paper_high=paper,
            simulated=gains[groups, size],
            kind=kind,
        )


def redundancy_gains(runs: Runs) -> dict[tuple[int, int], float]:
    """Return the rollout time of 32 groups of 8 over that of each other number and size."""
    base = _rollout(_SLOW_RESETS, groups=_BATCH_GROUPS, compute=24)
    base = replace(base, reuse_prefixes=True, environments=36 * 12)
    usual_s = runs.rollout_s(base)
    return {
        (groups, size): usual_s
        / runs.rollout_s(
            replace(base, extra_groups=groups - _BATCH_GROUPS, extra_members=size - GROUP_SIZE)
        )
        for groups, size in _REDUNDANCY
    }


def reward_rows(runs: Runs) -> Iterator[PaperRow]:
    """Compare four dedicated reward GPUs with functions, their GPUs given to the rollout."""
    setup = _rollout(_JUDGED, groups=GROUPS, compute=4)
    before = replace(setup, rewards=_DEDICATED)
    after = replace(setup, compute=8, rewards=_ELASTIC)
    yield PaperRow(
        name="rollout, dedicated over serverless rewards",
        paper_low=158 / 77,
        paper_high=158 / 77,
        simulated=runs.rollout_s(before) / runs.rollout_s(after),
    )
    for name, paper, used in (("dedicated", 0.06, before), ("serverless", 0.88, after)):
        yield PaperRow(
            name=f"utilisation of {name} rewards",
            paper_low=paper,
            paper_high=paper,
            simulated=runs.reward_use(used),
            kind="fitted",
            measure="share",
        )


def weight_rows() -> Iterator[PaperRow]:
    """Compare the times of pushing and pulling one version of the weights."""
    for size in SIZES:
        costs = testbed(size, "rollart").cluster.weights
        simulated = (costs.push_s, costs.pull_s, costs.exposed_s)
        names = ("push", "accumulated pull", "exposed pull")
        for name, paper, seconds in zip(names, _WEIGHTS[size], simulated, strict=True):
            yield PaperRow(
                name=f"weights, {name}, {size}",
                paper_low=paper,
                paper_high=paper,
                simulated=seconds,
                kind="fitted",
                measure="seconds",
            )


def disaggregation_rows(
    gains: Mapping[str, Mapping[tuple[int, int], float]],
) -> Iterator[PaperRow]:
    """Compare engines that only read or only sample with engines that do both."""
    for size, paper in _DISAGGREGATION.items():
        for split, value in paper.items():
            prefill, decode = split
            yield PaperRow(
                name=f"prefill/decode split, {prefill}P{decode}D over colocated, {size}",
                paper_low=value,
                paper_high=value,
                simulated=gains[size][split],
            )


def disaggregation_gains(runs: Runs) -> dict[str, dict[tuple[int, int], float]]:
    """Return the rollout time of four colocated engines over that of each split, by model."""
    gains: dict[str, dict[tuple[int, int], float]] = {}
    for size in _DISAGGREGATION:
        setup = _rollout(SWE, groups=6, compute=4 * TP[size])
        setup = replace(setup, size=size, reuse_prefixes=True)
        together_s = runs.rollout_s(setup)
        gains[size] = {
            split: together_s / runs.rollout_s(replace(setup, split=split)) for split in _UNITS
        }
    return gains


def _rollout(task: TaskProfile, *, groups: int, compute: int) -> Setup:
    """Return a set-up of one batch with an environment for every attempt."""
    setup = Setup(mode="sync_plus", compute=compute, train=8, groups=groups, steps=1)
    return replace(setup, tasks=(task,), environments=groups * GROUP_SIZE)
