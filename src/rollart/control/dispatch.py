"""Dispatch: which task is opened next.

In order of arrival tasks are opened by index. With "longest" the next `lookahead_groups` indices
are opened in the order of how long a group of their domain is expected to take, the longest first,
and only when all of them are open are the next ones looked at. So the stream is permuted within
blocks of a fixed size: no index is lost or repeated, none waits behind more than a block, and every
block trains the same mix whatever is expected.

A group takes as long as its slowest member, so a domain is judged by its mean and its spread. One
of which nothing is known goes first: it is the one to learn about.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf, sqrt
from typing import Literal, TypedDict

from rollart.errors import ConfigError

_WEIGHT = 0.05
"""What one attempt counts once many are known."""
_SPREADS = 2.0
"""Standard deviations above the mean at which a group's slowest member is expected."""

DomainOf = Callable[[int], str]
"""The domain of the task at an index."""


def one_domain(_index: int) -> str:
    """Put every task in the same domain."""
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dispatch:
    """Which task is opened next."""

    order: Literal["arrival", "longest"] = "arrival"
    """Open tasks as they come, or those expected to take longest first."""
    lookahead_groups: int = 0
    """Groups put in order together with "longest"; 0 takes as many as a batch holds."""

    def __post_init__(self) -> None:
        if self.lookahead_groups < 0:
            fix = "must be at least 0 (0: a batch)"
            raise ConfigError("dispatch.lookahead_groups", self.lookahead_groups, fix)


class DispatchRecord(TypedDict):
    """A dispatcher between two events."""

    next_task: int
    block: list[int]
    durations: dict[str, tuple[int, float, float]]


class Durations:
    """How long the attempts of each domain take, the latest counting most."""

    def __init__(self) -> None:
        self.known: dict[str, tuple[int, float, float]] = {}
        """Attempts counted, mean and variance in seconds, by domain."""

    def note(self, domain: str, took_s: float) -> None:
        """Count an attempt that finished."""
        count, mean_s, variance = self.known.get(domain, (0, 0.0, 0.0))
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


class Dispatcher:
    """Hands out every task index once."""

    def __init__(self, rule: Dispatch, *, groups_per_step: int, domain_of: DomainOf) -> None:
        self.domain_of = domain_of
        self.durations = Durations()
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
        """Return what a later run needs to go on."""
        known: Mapping[str, tuple[int, float, float]] = self.durations.known
        return DispatchRecord(next_task=self._next, block=list(self._block), durations=dict(known))

    def restore(self, record: DispatchRecord) -> None:
        """Go on from a record."""
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
