"""Task order: the endless stream of tasks, and which of them is opened next.

`TaskMix` draws the task at an index from a weighted mix. It depends only on the seed and the index,
so a resumed or replayed run poses the same problems. Each task names its split, "train" or "test",
so that an environment can keep the problems of evaluations apart, and its index, so that it can
pose each of them once.

`Dispatcher` hands out every index once. In order of arrival tasks are opened by index. With
"longest" the next `lookahead_groups` indices are opened longest expected duration first, and only
when all of them are open are the next ones considered. So the stream is permuted within blocks of a
fixed size: no index is lost or repeated, and every block trains the same mix. A domain with no
known duration is opened first, to learn about it.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import inf, sqrt
from typing import TypedDict

from rollart.control.rules import Dispatch
from rollart.errors import ConfigError
from rollart.seeds import derive_seed
from rollart.types import Json, Task

_WEIGHT = 0.05
"""What one attempt counts once many are known."""


_SPREADS = 2.0
"""Standard deviations above the mean at which a group's slowest member is expected."""


_LATE = 2.0
"""An attempt is late after this many times what a group's slowest member is expected to take."""


_ENOUGH = 8
"""Attempts after which one is held against the mean."""


class AttemptDurations:
    """How long the attempts of each domain take, the latest counting most."""

    def __init__(self, *, most: float = inf) -> None:
        """Take how many means one attempt counts for at most, once enough are known."""
        self._most = most
        self.known: dict[str, tuple[int, float, float]] = {}
        """Attempts counted, mean and variance in seconds, by domain."""

    def note(self, domain: str, took_s: float) -> None:
        """Count an attempt that finished."""
        count, mean_s, variance = self.known.get(domain, (0, 0.0, 0.0))
        if count >= _ENOUGH and 0 < self._most * mean_s < took_s:
            took_s = self._most * mean_s
        weight = max(_WEIGHT, 1 / (count + 1))
        off_s = took_s - mean_s
        variance = (1 - weight) * (variance + weight * off_s * off_s)
        self.known[domain] = (count + 1, mean_s + weight * off_s, variance)

    def note_cancelled(self, domain: str, ran_s: float) -> None:
        """Count an attempt that was stopped, if it had already run longer than usual."""
        if ran_s > self.known.get(domain, (0, inf, 0.0))[1]:
            self.note(domain, ran_s)

    def expected_s(self, domain: str) -> float:
        """Return how long a group's slowest member is expected to take; inf if nothing is known."""
        if domain not in self.known:
            return inf
        _, mean_s, variance = self.known[domain]
        return mean_s + _SPREADS * sqrt(variance)

    def late_s(self, domain: str) -> float:
        """Return after how long an attempt is late.

        A domain without measurements counts as the slowest; inf if no domain has any.
        """
        domains = (domain,) if domain in self.known else self.known
        return _LATE * max(map(self.expected_s, domains), default=inf)


DomainOf = Callable[[int], str]
"""The domain of the task at an index."""


class DispatchRecord(TypedDict):
    """A dispatcher between two events."""

    next_task: int
    block: list[int]
    durations: dict[str, tuple[int, float, float]]


class Dispatcher:
    """Hands out every task index once."""

    def __init__(self, rule: Dispatch, *, groups_per_step: int, domain_of: DomainOf) -> None:
        self.domain_of = domain_of
        self.durations = AttemptDurations()
        self._is_longest_first = rule.order == "longest"
        self._lookahead = rule.lookahead_groups or groups_per_step
        self._next = 0
        self._block: list[int] = []
        """Indices looked at and not yet opened, the next one last."""

    def next_task(self) -> int:
        """Return the index of the task to open."""
        if not self._block:
            self._look_ahead()
        return self._block.pop()

    def record(self) -> DispatchRecord:
        """Return what a resumed run needs."""
        known: Mapping[str, tuple[int, float, float]] = self.durations.known
        return DispatchRecord(next_task=self._next, block=list(self._block), durations=dict(known))

    def restore(self, record: DispatchRecord) -> None:
        """Continue from a record."""
        self._next = record["next_task"]
        self._block = list(record["block"])
        for domain, (count, mean_s, variance) in record["durations"].items():
            self.durations.known[domain] = (count, mean_s, variance)

    def _look_ahead(self) -> None:
        if not self._is_longest_first:
            self._block.append(self._next)
            self._next += 1
            return
        block = range(self._next, self._next + self._lookahead)
        self._next += self._lookahead
        expected_s = {index: self.durations.expected_s(self.domain_of(index)) for index in block}
        self._block = sorted(block, key=lambda index: (expected_s[index], -index))


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
