"""Publishing: the policy's weights on their way into a weight store, one tensor at a time.

Of a sharded policy each tensor is gathered when its turn comes and given up before the next: the
first rank never holds the whole model, only the largest tensor and what the store makes of it. All
ranks go through all tensors, also when the store refuses in the middle: none is left waiting.
"""

import importlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch import Tensor

from rollart.errors import StorageError
from rollart.ports import Array, WeightStore
from rollart.training.policy import Policy
from rollart.training.world import told_to_all
from rollart.types import ArraySpec, Version

_STORE_OPENER = "rollart.weights.opening:open_store"
"""Opens the weight store when none is handed over: named, not imported, as hosts name actors."""
_FLOAT32 = "<f4"


def open_store(store: WeightStore | Mapping[str, Any] | None) -> WeightStore | None:
    """Return a store that was handed over, or the one that options describe."""
    if not isinstance(store, Mapping):
        return store
    module, name = _STORE_OPENER.split(":")
    opener: Callable[..., WeightStore] = getattr(importlib.import_module(module), name)
    return opener(**store)


def publish_weights(policy: Policy, store: WeightStore | None, version: Version) -> None:
    """Put a policy's weights into the store of the first rank, in fp32, by Hugging Face name."""
    tensors = policy.tuning.weights(policy.model)
    with told_to_all(policy.world, StorageError):
        try:
            if store is not None:
                store.stream(version, _specs(policy), arrays_of(tensors))
        finally:
            for _ in tensors:  # gathering a tensor is every rank's affair
                pass


def arrays_of(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Array]]:
    """Yield tensors as arrays in fp32."""
    for name, value in tensors:
        yield name, value.float().cpu().numpy()


def _specs(policy: Policy) -> dict[str, ArraySpec]:
    """Return what will come, in order: `Tuning.weights` goes through the same tensors."""
    return {
        name: ArraySpec(shape=tuple(value.shape), dtype=_FLOAT32)
        for key, value in policy.model.state_dict().items()
        if (name := policy.tuning.model_name(key)) is not None
    }
