"""Dispatch: which task is opened next.

In order of arrival tasks are opened by index. With "longest" the next `lookahead_groups` indices
are opened in the order of how long a group of their domain is expected to take, the longest first,
and only when all of them are open are the next ones looked at. So the stream is permuted within
blocks of a fixed size: no index is lost or repeated, none waits behind more than a block, and every
block trains the same mix whatever is expected.

A domain of which nothing is known goes first: it is the one to learn about.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, TypedDict

from rollart.control.durations import Durations
from rollart.errors import ConfigError

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
