"""Task profiles: how the episodes of well-known tasks behave, for the simulator and the planner.

A config takes one by name, `profile = { like = "swe" }`. Turns are the paper's; tokens per turn and
latencies are chosen, and docs/simulator.md says by what. They stand for SWE-bench, WebShop,
FrozenLake, and GEM's mathematics and games.
"""

from rollart.sim.distributions import Latency
from rollart.sim.workload import TaskProfile


def lognormal(mean_s: float, spread: float = 0.5) -> Latency:
    """Return a lognormal latency."""
    return Latency(kind="lognormal", mean_s=mean_s, spread=spread)


SWE = TaskProfile(
    name="swe",
    turns=(30, 50),
    opening_tokens=2000,
    reads=350,
    samples=100,
    reset=lognormal(40.0),
    step=lognormal(1.5, 0.8),
    score=lognormal(3.0),
)
WEBSHOP = TaskProfile(
    name="webshop",
    turns=(5, 30),
    opening_tokens=800,
    reads=400,
    samples=250,
    reset=lognormal(15.0),
    step=lognormal(0.5, 0.8),
    score=lognormal(1.0),
)
FROZEN_LAKE = TaskProfile(
    name="frozenlake",
    turns=(20, 100),
    opening_tokens=500,
    reads=70,
    samples=100,
    reset=lognormal(15.0),
    step=lognormal(0.2),
    score=lognormal(0.5),
)
MATH = TaskProfile(
    name="math",
    turns=(2, 4),
    opening_tokens=300,
    reads=300,
    samples=3000,
    samples_spread=0.2,
    reset=lognormal(15.0),
    step=lognormal(1.0),
    score=lognormal(1.0),
)
GAME = TaskProfile(
    name="game",
    turns=(1, 1),
    opening_tokens=500,
    samples=9000,
    samples_spread=0.2,
    reset=lognormal(15.0),
    step=lognormal(0.2),
    score=lognormal(1.0),
)
TASKS = (SWE, WEBSHOP, FROZEN_LAKE, MATH, GAME)
"""Every profile that a config can name."""
