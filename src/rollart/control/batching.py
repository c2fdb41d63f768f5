"""Batching: which finished groups form the next batch.

Any `groups_per_step` complete groups will do, so no slow group holds up others; whether a step
waits for work that it would make too old is for `pacing`. Oldest first spends the work nearest the
staleness bound before it expires.
"""

from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal

from rollart.errors import ConfigError
from rollart.types import GroupId, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """Sizes of groups and batches, and the order in which complete groups are taken."""

    groups_per_step: int = 8
    """Groups the trainer consumes in one optimizer step."""
    group_size: int = 8
    """Attempts at one task whose rewards are compared."""
    min_members: int = 2
    """Fewest scored attempts a group may train with, when others failed for good."""
    order: Literal["oldest", "finished"] = "oldest"
    """Take the groups born of the oldest weights first, or in the order they finished."""

    def __post_init__(self) -> None:
        if self.groups_per_step < 1:
            raise ConfigError("batching.groups_per_step", self.groups_per_step, "must be >= 1")
        if self.group_size < 1:
            raise ConfigError("batching.group_size", self.group_size, "must be at least 1")
        if self.min_members < 1:
            raise ConfigError("batching.min_members", self.min_members, "must be at least 1")

    def key(self, *, born: Version, finished: int) -> tuple[int, int]:
        """Return a group's place in the queue; `finished` counts groups in completion order."""
        return (born, finished) if self.order == "oldest" else (finished, born)


class ReadyQueue:
    """Complete groups in the order they will be taken; removed ones are skipped when met."""

    def __init__(self, rule: Batching) -> None:
        self._rule = rule
        self._heap: list[tuple[tuple[int, int], GroupId]] = []
        self._pushed = 0

    def push(self, group: GroupId, *, born: Version) -> None:
        """Add a complete group."""
        heappush(self._heap, (self._rule.key(born=born, finished=self._pushed), group))
        self._pushed += 1

    def take(self, is_ready: Callable[[GroupId], bool]) -> list[GroupId]:
        """Remove and return one batch; at least that many of the groups must be ready."""
        batch: list[GroupId] = []
        while len(batch) < self._rule.groups_per_step:
            group = heappop(self._heap)[1]
            if is_ready(group):
                batch.append(group)
        return batch
