"""Problems from the paper: its testbed, and the shape of its production cluster."""

from rollart.planning.problem import Pool, Problem
from rollart.sim.paper.setup import (
    BANDWIDTH,
    COMPUTE,
    ENVIRONMENTS,
    H20,
    H800,
    PRODUCTION,
    TP,
    shape,
    testbed,
)
from rollart.sim.paper.setup import tasks as mix


def paper_problem(size: str) -> Problem:
    """Return the paper's testbed, mix and schedule: 96 H800 and 32 H20."""
    setup = testbed(size, "rollart")
    return Problem(
        model=setup.cluster.model,
        pools=(
            Pool(name=COMPUTE, gpu=H800, count=setup.compute + setup.train),
            Pool(name=BANDWIDTH, gpu=H20, count=setup.bandwidth, role="rollout"),
        ),
        tasks=mix(size),
        rules=setup.rules,
        most_slots=ENVIRONMENTS,
        reuse_prefixes=setup.reuse_prefixes,
        constants=setup.constants,
    )


def production_problem() -> Problem:
    """Return the shape of the production cluster at a size that is planned in a minute.

    Only the division of its GPUs is open.
    """
    setup = testbed("32B", "rollart")
    return Problem(
        model=shape("32B"),
        pools=(Pool(name=COMPUTE, gpu=H800, count=192, tp=TP["32B"]),),
        tasks=(PRODUCTION,),
        rules=setup.rules,
        may_split=False,
        constants=setup.constants,
    )
