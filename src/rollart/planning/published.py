"""Problems from the paper: its testbed, and the shape of its production cluster."""

from rollart.control.batching import Batching
from rollart.control.modes import ROLLART
from rollart.control.rules import Rules
from rollart.control.staleness import Staleness
from rollart.planning.problem import Pool, Problem
from rollart.planning.profiles import PROFILES
from rollart.sim.hardware import gpu_named
from rollart.sim.latency import Latency
from rollart.sim.models import model_named
from rollart.sim.workload import TaskProfile


def paper_problem(model: str) -> Problem:
    """Return the paper's testbed and mix: 96 H800 and 32 H20, SWE only for the largest model."""
    tasks = tuple(p for p in PROFILES.values() if model == "Qwen3-32B" or p.name != "swe")
    return Problem(
        model=model_named(model),
        pools=(
            Pool(name="h800", gpu=gpu_named("H800"), count=96),
            Pool(name="h20", gpu=gpu_named("H20"), count=32, role="rollout"),
        ),
        tasks=tasks,
        rules=_rules(groups=64),
    )


def production_problem() -> Problem:
    """Return the shape of the production cluster at a size that is planned in a minute."""
    task = TaskProfile(
        name="agent",
        turns=(1, 48),
        opening_tokens=2000,
        reads=400,
        samples=300,
        samples_spread=0.9,
        reset=Latency(kind="lognormal", mean_s=10, spread=0.8),
        step=Latency(kind="lognormal", mean_s=1, spread=0.8),
    )
    return Problem(
        model=model_named("Qwen3-32B"),
        pools=(Pool(name="h800", gpu=gpu_named("H800"), count=192),),
        tasks=(task,),
        rules=_rules(groups=64),
    )


def _rules(*, groups: int) -> Rules:
    return Rules(
        steps=1,
        mode=ROLLART,
        batching=Batching(groups_per_step=groups, group_size=8),
        staleness=Staleness(alpha=1),
    )
