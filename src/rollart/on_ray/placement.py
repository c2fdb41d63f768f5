"""What Ray is asked for to put an actor where it was bound."""

from collections.abc import Mapping
from typing import Any

from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy


def on_node(
    node: str, *, resources: Mapping[str, float], cpus: float, gpus: float = 0.0
) -> dict[str, Any]:
    """Return the options of an actor on one node, which holds these for it alone."""
    return {
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id=node, soft=False),
        "resources": dict(resources),
        "num_cpus": cpus,
        "num_gpus": gpus,
    }
