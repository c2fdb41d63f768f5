"""Capacity: what a pool was declared with, what a worker needs, and whether that could ever fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

CPU = "CPU"
"""The hardware class of pools without devices."""
ANY = "any"
"""The role of pools that do whatever they are given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What one worker takes, all of it on one node."""

    units: int = 1
    """0: a place on any of the pool's nodes."""
    memory_gb: float = 0.0
    """Of all its units together; a worker without units has what the node has."""

    def __str__(self) -> str:
        memory = f" with {self.memory_gb:,.4g} GB together" if self.memory_gb else ""
        return f"{_count(self.units)} on one node{memory}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCapacity:
    """A pool as it was declared."""

    name: str
    hardware: str
    """Its hardware class."""
    units: int
    """Devices, or for CPU pools workers, that it has when all its nodes are alive."""
    memory_gb_per_unit: float
    units_per_node: int = 0
    """Most units of one node; 0: the whole pool may be one."""
    resource: str = ""
    """What its units are called on a node; pools with the same name for them may share nodes."""
    role: str = ANY
    """What alone it does."""

    @property
    def is_cpu(self) -> bool:
        """Whether it has no devices."""
        return self.hardware == CPU

    @property
    def most(self) -> int:
        """Units that one worker can have."""
        return min(self.units, self.units_per_node or self.units)

    def fits(self, needs: Needs) -> bool:
        """Say whether the pool, all of it free, could take a worker."""
        offered = needs.units * self.memory_gb_per_unit
        return needs.units <= self.most and (not needs.units or needs.memory_gb <= offered)

    def stands_in_for(self, preferred: Sequence["PoolCapacity"]) -> bool:
        """Say whether a worker that prefers these pools may be in this one in their place."""
        is_like = not preferred or self.is_cpu in {pool.is_cpu for pool in preferred}
        return is_like and self.role in {ANY, *(pool.role for pool in preferred)}

    def offer(self, needs: Needs) -> str:
        """Say what there is of what a worker needs and the pool has too little of."""
        if needs.units > self.most:
            return f"{self.name} has {_count(self.most)} on a node"
        offered = needs.units * self.memory_gb_per_unit
        each = f"{needs.units} x {self.memory_gb_per_unit:,.4g}"
        return f"{self.name} offers {each} = {offered:,.4g} GB"

    def key(self, node: str) -> tuple[str, str]:
        """Return what its units of a node are counted under."""
        return (self.resource or self.hardware, node)

    def by_node(self, alive: int | Mapping[str, int]) -> dict[str, int]:
        """Return units by node; where nodes are not known, as nodes of the declared size."""
        if not isinstance(alive, int):
            return {node: units for node, units in alive.items() if units > 0}
        size = self.units_per_node or max(alive, 1)
        starts = range(0, alive, size)
        return {f"{self.name}/{start // size}": min(size, alive - start) for start in starts}


def _count(units: int) -> str:
    return f"{units} unit" if units == 1 else f"{units} units"
