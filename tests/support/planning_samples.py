"""A small problem: two kinds of GPUs, two tasks, batches of 32 attempts."""

from typing import Any

from rollart.control.rules import MODES, Batching, Rules
from rollart.control.staleness import Staleness
from rollart.hardware.gpus import gpu_named
from rollart.hardware.models import model_named
from rollart.planning.plan import ANYWHERE, Plan, PoolShare
from rollart.planning.problem import Pool, Problem
from rollart.sim.workload import Latency, TaskProfile

READER = TaskProfile(
    name="reader",
    turns=(4, 8),
    opening_tokens=2000,
    reads=800,
    samples=40,
    reset=Latency(kind="lognormal", mean_s=2, spread=0.5),
    step=Latency(kind="lognormal", mean_s=0.5, spread=0.5),
)
WRITER = TaskProfile(
    name="writer",
    turns=(1, 1),
    opening_tokens=300,
    samples=2000,
    reset=Latency(kind="constant", mean_s=1),
)
H800 = Pool(name="h800", gpu=gpu_named("H800"), count=24)
H20 = Pool(name="h20", gpu=gpu_named("H20"), count=16)


def make_problem(**changes: Any) -> Problem:
    """Return the problem, changed in some fields."""
    fields: dict[str, Any] = {
        "model": model_named("Qwen3-8B"),
        "pools": (H800, H20),
        "tasks": (READER, WRITER),
        "rules": make_rules(),
        **changes,
    }
    return Problem(**fields)


def make_rules(mode: str = "rollart", *, alpha: int = 1) -> Rules:
    """Return rules for eight groups of four."""
    return Rules(
        steps=1,
        mode=MODES[mode],
        batching=Batching(groups_per_step=8, group_size=4),
        staleness=Staleness(alpha=alpha),
    )


def make_plan(**changes: Any) -> Plan:
    """Return a plan for the problem, changed in some fields."""
    fields: dict[str, Any] = {
        "train": H800,
        "train_gpus": 8,
        "rollout": (PoolShare(pool=H800, gpus=16, tp=1), PoolShare(pool=H20, gpus=16, tp=1)),
        "serves": {"reader": "h800", "writer": "h20"},
        "alpha": 1,
        "extra_groups": 0,
        "slots": 64,
        **changes,
    }
    return Plan(**fields)


NOWHERE_SPECIAL = {"reader": ANYWHERE, "writer": ANYWHERE}
