"""Experiments on whole schedules: the modes, cluster sizes, affinity, alpha, weight transfer."""

from collections.abc import Iterator
from dataclasses import replace

from rollart.types import Json
from studies.paper.rows import Kind, PaperRow, Runs
from studies.paper.setup import SIZES, Setup, testbed

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
_LIKE_GPUS = tuple(Setup(size="14B", compute=3 * train, train=train) for train in (16, 32))
"""64 and 128 H800."""


def schedule_rows(runs: Runs) -> Iterator[PaperRow]:
    """Compare the five schedules at every model size."""
    for size in SIZES:
        for mode, other, low, high in _THROUGHPUT:
            ratio = runs.throughput(testbed(size, mode)) / runs.throughput(testbed(size, other))
            yield PaperRow(
                name=f"throughput, {mode} over {other}, {size}",
                paper_low=low,
                paper_high=high,
                simulated=ratio,
                kind=_kind(size),
                follows=(mode, other) == ("rollart", "sync"),
            )
    ours = runs.step_s(testbed("32B", "rollart"))
    for mode, paper in (("sync_plus", 2.05), ("one_off", 1.35), ("areal", 1.31)):
        yield _again(f"step time, {mode} over rollart, 32B", paper, _step(runs, mode) / ours)
    ratio = _step(runs, "sync_plus") / _step(runs, "one_off")
    yield _again("step time, sync_plus over one_off, 32B", 1.52, ratio)


def scaling_rows(runs: Runs) -> Iterator[PaperRow]:
    """Compare schedules on 64 and 128 like GPUs, where there is no affinity."""
    for setup in _LIKE_GPUS:
        for mode in ("sync_plus", "one_off", "areal"):
            name = f"throughput without affinity, rollart over {mode}, 14B, {setup.gpus} GPUs"
            ratio = runs.throughput(setup) / runs.throughput(replace(setup, mode=mode))
            kind: Kind = "fitted" if (mode, setup.gpus) == ("areal", 64) else "predicted"
            yield PaperRow(name=name, paper_low=1.33, paper_high=2.08, simulated=ratio, kind=kind)


def scaling_over_sync(runs: Runs) -> dict[str, Json]:
    """Return the same ratio to `sync`, by GPUs.

    It is no row, for the paper's 1.33 to 2.08 cannot be about `sync`: that is at least 1.40 × 1.31
    times slower than `one_off`, and RollArt at least 1.33 times faster than that.
    """
    return {
        str(setup.gpus): runs.throughput(setup) / runs.throughput(replace(setup, mode="sync"))
        for setup in _LIKE_GPUS
    }


def affinity_rows(runs: Runs) -> Iterator[PaperRow]:
    """Compare unlike rollout GPUs with like ones of the same cost."""
    for size in SIZES:
        mixed = Setup(size=size, compute=64, bandwidth=24)
        ours = runs.throughput(mixed)
        only_bandwidth = runs.throughput(replace(mixed, compute=0, bandwidth=208))
        only_compute = runs.throughput(replace(mixed, compute=72, bandwidth=0))
        for name, other, low, high in (
            ("208 H20", only_bandwidth, 1.30, 1.68),
            ("72 H800", only_compute, 1.12, 1.37),
        ):
            yield PaperRow(
                name=f"affinity, 64 H800 + 24 H20 over {name}, {size}",
                paper_low=low,
                paper_high=high,
                simulated=ours / other,
                kind=_kind(size),
            )


def alpha_rows(runs: Runs) -> Iterator[PaperRow]:
    """Compare the best staleness bound with 1."""
    for size, paper in zip(SIZES, (1.22, 1.17, 1.14), strict=True):
        setup = testbed(size, "rollart")
        best = max(runs.throughput(replace(setup, alpha=alpha)) for alpha in _ALPHAS)
        ratio = best / runs.throughput(setup)
        yield PaperRow(
            name=f"best alpha over alpha 1, {size}",
            paper_low=paper,
            paper_high=paper,
            simulated=ratio,
            kind=_kind(size),
        )


def transfer_rows(runs: Runs) -> Iterator[PaperRow]:
    """Compare a blocking broadcast of the weights with the asynchronous transfer."""
    for size in SIZES:
        setup = testbed(size, "rollart")
        ratio = runs.step_s(replace(setup, blocking=True)) / runs.step_s(setup)
        name = f"step time, blocking over asynchronous weights, {size}"
        yield PaperRow(name=name, paper_low=1.10, paper_high=1.16, simulated=ratio)


def orderings(runs: Runs) -> dict[str, bool]:
    """Say for each size whether the schedules are ordered as the paper has them."""
    result: dict[str, bool] = {}
    for size in SIZES:
        rates = {mode: runs.throughput(testbed(size, mode)) for mode in MODE_NAMES}
        result[size] = (
            rates["sync"] < rates["sync_plus"] < rates["one_off"] <= rates["areal"]
            and rates["areal"] < rates["rollart"]
        )
    return result


def _step(runs: Runs, mode: str) -> float:
    return runs.step_s(testbed("32B", mode))


def _kind(size: str) -> Kind:
    return "fitted" if size == _FITTED_SIZE else "predicted"


def _again(name: str, paper: float, simulated: float) -> PaperRow:
    """Return a row that follows from those on throughput."""
    return PaperRow(name=name, paper_low=paper, paper_high=paper, simulated=simulated, follows=True)
