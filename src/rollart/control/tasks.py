"""Tasks: an endless stream of problems, drawn from a weighted mix by index.

The task at an index depends only on the seed and the index, so a resumed or replayed run poses
the same problems. Each task names its split, "train" or "test", so that an environment can keep
the problems of evaluations apart from those of training, and its index, so that it can pose each
of them once.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from rollart.errors import ConfigError
from rollart.seeds import derive_seed
from rollart.types import Json, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskKind:
    """One kind of problem in the mix."""

    name: str
    domain: str
    weight: float = 1.0


class TaskMix:
    """The stream of tasks of a run."""

    def __init__(self, kinds: Sequence[TaskKind], *, seed: int, split: str = "train") -> None:
        total = sum(kind.weight for kind in kinds)
        if total <= 0 or any(kind.weight < 0 for kind in kinds):
            weights = [kind.weight for kind in kinds]
            raise ConfigError("tasks.weight", weights, "weights must be >= 0 and not all 0")
        self.kinds = tuple(kinds)
        self._bounds = [bound / total for bound in accumulate(kind.weight for kind in kinds)]
        self.seed = seed
        self._split = split

    def task(self, index: int) -> Task:
        """Return the task at an index."""
        kind = self._kind(index)
        seed = derive_seed(self.seed, index, 1) % 2**31
        payload: dict[str, Json] = {"split": self._split, "index": index}
        return Task(id=index, env=kind.name, domain=kind.domain, seed=seed, payload=payload)

    def name(self, index: int) -> str:
        """Return what the task at an index is called."""
        return self._kind(index).name

    def domain(self, index: int) -> str:
        """Return the domain of the task at an index."""
        return self._kind(index).domain

    def _kind(self, index: int) -> TaskKind:
        draw = derive_seed(self.seed, index, 0) / 2**63
        return self.kinds[min(bisect_right(self._bounds, draw), len(self.kinds) - 1)]
