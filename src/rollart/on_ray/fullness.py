"""What Ray raises when its object store has no room, and what is said then."""

from ray.exceptions import ObjectStoreFullError, OutOfDiskError

FULL = (ObjectStoreFullError, OutOfDiskError)
"""No room in memory, or none to spill to."""


def explain(error: Exception) -> str:
    """Return what is full and what helps, in one line."""
    why = str(error).strip().split("\n", 1)[0]
    return (
        f"Ray's object store is full ({why}); start the nodes with more --object-store-memory, "
        "or lower weights.keep or batching.groups_per_step"
    )
