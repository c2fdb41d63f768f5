"""Experiments on whole schedules: the modes, cluster sizes, affinity, alpha, weight transfer."""

from collections.abc import Iterator
from dataclasses import replace

from rollart.sim.paper.rows import Kind, Row, Runs
from rollart.sim.paper.setup import SIZES, Setup, testbed

MODE_NAMES = ("sync", "sync_plus", "one_off", "areal", "rollart")
_THROUGHPUT = (
    ("sync_plus", "sync", 1.40, 2.40),
    ("one_off", "sync_plus", 1.31, 1.47),
    ("areal", "one_off", 1.03, 1.06),
    ("rollart", "areal", 1.22, 1.36),
    ("rollart", "sync", 2.65, 4.58),
)
_FITTED_SIZE = "8B"
"""The model whose figures the set-up was chosen by."""
_ALPHAS = (2, 3, 4)


def schedule_rows(runs: Runs) -> Iterator[Row]:
    """Compare the five schedules at every model size."""
    for size in SIZES:
        for mode, other, low, high in _THROUGHPUT:
            ratio = runs.throughput(_bed(runs, size, mode)) / runs.throughput(
                _bed(runs, size, other)
            )
            name = f"throughput, {mode} over {other}, {size}"
            yield Row(name=name, paper_low=low, paper_high=high, simulated=ratio, kind=_kind(size))
    ours = runs.step_s(_bed(runs, "32B", "rollart"))
    for mode, paper in (("sync_plus", 2.05), ("one_off", 1.35), ("areal", 1.31)):
        yield _one(f"step time, {mode} over rollart, 32B", paper, _step(runs, mode) / ours)
    ratio = _step(runs, "sync_plus") / _step(runs, "one_off")
    yield _one("step time, sync_plus over one_off, 32B", 1.52, ratio)


def scaling_rows(runs: Runs) -> Iterator[Row]:
    """Compare schedules on 64 and 128 like GPUs, where there is no affinity."""
    for train, rollout in ((16, 48), (32, 96)):
        setup = Setup(size="14B", compute=rollout, train=train, steps=runs.steps)
        ours = runs.throughput(setup)
        for mode in ("sync_plus", "one_off", "areal"):
            name = f"throughput without affinity, rollart over {mode}, 14B, {train + rollout} GPUs"
            ratio = ours / runs.throughput(replace(setup, mode=mode))
            kind: Kind = "fitted" if (mode, train) == ("areal", 16) else "predicted"
            yield Row(name=name, paper_low=1.33, paper_high=2.08, simulated=ratio, kind=kind)


def affinity_rows(runs: Runs) -> Iterator[Row]:
    """Compare unlike rollout GPUs with like ones of the same cost."""
    for size in SIZES:
        mixed = Setup(size=size, compute=64, bandwidth=24, steps=runs.steps)
        ours = runs.throughput(mixed)
        only_bandwidth = runs.throughput(replace(mixed, compute=0, bandwidth=208))
        only_compute = runs.throughput(replace(mixed, compute=72, bandwidth=0))
        for name, other, low, high in (
            ("208 H20", only_bandwidth, 1.30, 1.68),
            ("72 H800", only_compute, 1.12, 1.37),
        ):
            yield Row(
                name=f"affinity, 64 H800 + 24 H20 over {name}, {size}",
                paper_low=low,
                paper_high=high,
                simulated=ours / other,
                kind=_kind(size),
            )


def alpha_rows(runs: Runs) -> Iterator[Row]:
    """Compare the best staleness bound with 1."""
    for size, paper in zip(SIZES, (1.22, 1.17, 1.14), strict=True):
        setup = _bed(runs, size, "rollart")
        best = max(runs.throughput(replace(setup, alpha=alpha)) for alpha in _ALPHAS)
        ratio = best / runs.throughput(setup)
        yield Row(
            name=f"best alpha over alpha 1, {size}",
            paper_low=paper,
            paper_high=paper,
            simulated=ratio,
            kind=_kind(size),
        )


def transfer_rows(runs: Runs) -> Iterator[Row]:
    """Compare a blocking broadcast of the weights with the asynchronous transfer."""
    for size in SIZES:
        setup = _bed(runs, size, "rollart")
        ratio = runs.step_s(replace(setup, blocking=True)) / runs.step_s(setup)
        name = f"step time, blocking over asynchronous weights, {size}"
        yield Row(name=name, paper_low=1.10, paper_high=1.16, simulated=ratio)


def orderings(runs: Runs) -> dict[str, bool]:
    """Say for each size whether the schedules are ordered as the paper has them."""
    result: dict[str, bool] = {}
    for size in SIZES:
        rates = {mode: runs.throughput(_bed(runs, size, mode)) for mode in MODE_NAMES}
        result[size] = (
            rates["sync"] < rates["sync_plus"] < rates["one_off"] <= rates["areal"]
            and rates["areal"] < rates["rollart"]
        )
    return result


def _bed(runs: Runs, size: str, mode: str) -> Setup:
    return replace(testbed(size, mode), steps=runs.steps)


def _step(runs: Runs, mode: str) -> float:
    return runs.step_s(_bed(runs, "32B", mode))


def _kind(size: str) -> Kind:
    return "fitted" if size == _FITTED_SIZE else "predicted"


def _one(name: str, paper: float, simulated: float) -> Row:
    return Row(name=name, paper_low=paper, paper_high=paper, simulated=simulated)
