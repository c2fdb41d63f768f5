"""What Ray is asked for to put an actor where it was bound."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

PACKED = "packed"
"""The option under which a host finds what to reserve before it starts an actor."""
_NODE = "ray.io/node-id"
_CPU, _GPU = "CPU", "GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Units of one node that are had together or not at all.

    The actor is in the first; the others are held for ranks that it starts in its group.
    """

    node: str
    units: tuple[Mapping[str, float], ...]

    def reserve(self) -> PlacementGroup:
        """Reserve the units; an actor in the group waits until they can be had."""
        return placement_group(
            [dict(unit) for unit in self.units],
            strategy="STRICT_PACK",
            bundle_label_selector=[{_NODE: self.node} for _ in self.units],
        )

    def inside(self, group: PlacementGroup) -> dict[str, Any]:
        """Return the options of the actor in the group."""
        first = dict(self.units[0])
        return {
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                group, placement_group_bundle_index=0
            ),
            "num_cpus": first.pop(_CPU, 0.0),
            "num_gpus": first.pop(_GPU, 0.0),
            "resources": first,
        }


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


def together_on_node(
    node: str, *, units: int, resources: Mapping[str, float], cpus: float, gpus: float
) -> dict[str, Any]:
    """Return the options of an actor with several units of one node; its CPUs are the first's."""
    unit = {name: amount / units for name, amount in {**resources, _GPU: gpus}.items() if amount}
    first = unit | ({_CPU: cpus} if cpus else {})
    return {PACKED: Packed(node=node, units=(first, *[unit] * (units - 1)))}
