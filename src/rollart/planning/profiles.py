"""Profiles by name: the tasks that come with the simulator, for `profile.like`."""

from collections.abc import Mapping

from rollart.sim.latency import Latency
from rollart.sim.workload import TaskProfile


def _latency(mean_s: float, spread: float = 0.5) -> Latency:
    return Latency(kind="lognormal", mean_s=mean_s, spread=spread)


PROFILES: Mapping[str, TaskProfile] = {
    each.name: each
    for each in (
        TaskProfile(
            name="swe",
            turns=(30, 50),
            opening_tokens=2000,
            reads=450,
            samples=150,
            reset=_latency(20, 0.8),
            step=_latency(1.5, 0.8),
            score=_latency(10),
        ),
        TaskProfile(
            name="webshop",
            turns=(5, 30),
            opening_tokens=800,
            reads=700,
            samples=120,
            reset=_latency(3, 0.8),
            step=_latency(0.5, 0.8),
            score=_latency(1),
        ),
        TaskProfile(
            name="frozenlake",
            turns=(20, 100),
            opening_tokens=500,
            reads=120,
            samples=100,
            reset=_latency(1),
            step=_latency(0.2),
            score=_latency(0.5),
        ),
        TaskProfile(
            name="math",
            turns=(1, 4),
            opening_tokens=300,
            reads=300,
            samples=3000,
            samples_spread=0.7,
            reset=_latency(1),
            step=_latency(1),
            score=_latency(1),
        ),
        TaskProfile(
            name="game",
            turns=(1, 1),
            opening_tokens=500,
            reads=200,
            samples=4000,
            samples_spread=0.7,
            reset=_latency(1),
            step=_latency(0.2),
            score=_latency(1),
        ),
    )
}
