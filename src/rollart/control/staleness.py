"""Staleness: how many groups may be outstanding, and which trajectories may still train.

A trajectory is born of the weights that chose its first action; a group is as old as its oldest
member. The bound on the gap between those weights and the ones the group will update, in optimizer
steps, is held twice. At the door, no more groups start than the trainer can consume within `alpha`
steps. At the exit, every group is checked again, because long ones finish out of order: nothing
older than `oldest` is trained. By default that is more than `alpha`, because dropping what is late
would train fewer long episodes than were played. `docs/staleness.md` has the proof, `docs/bias.md`
the reason.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Literal

from rollart.constraints import AtLeast, check_fields
from rollart.errors import ConfigError
from rollart.types import GroupId, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """Admits work so that nothing trained is more than `oldest` versions old."""

    alpha: Annotated[int, AtLeast(0)] = 1
    """Most optimizer steps a trajectory may lag the weights it updates, unless it is still running
    then (at_bound); 0 is on-policy."""
    adaptive: bool = False
    """Open groups by a smaller window, down to 1, while waste shows that alpha is too large."""
    counting: Literal["optimizer", "serving"] = "optimizer"
    """What age is counted against: the weights being updated, or (the paper's) those served."""
    window: Literal["served", "ahead"] = "served"
    """Count a batch as outstanding until its weights are served, or (the paper's) until taken."""
    at_bound: Literal["finish", "wait", "pace", "drop"] = "finish"
    """Before a step that would make running work older than alpha: let it finish and train it late,
    wait for it, wait a while and then drop it, or drop it. The last two lose long episodes."""
    max_age: Annotated[int, AtLeast(0, "0: 3 * alpha + 2")] = 0
    """With at_bound = "finish": most optimizer steps that late work may lag; a step that would make
    it older waits for it. 0 is 3 * alpha + 2."""
    patience_s: Annotated[float, AtLeast(0)] = 30.0
    """With at_bound = "pace": the longest a step waits; for work that is late it does not."""

    def __post_init__(self) -> None:
        check_fields(self, "staleness")
        if self.window == "ahead" and self.alpha == 0:
            fix = 'must be at least 1 with window = "ahead": nothing would ever start'
            raise ConfigError("staleness.alpha", self.alpha, fix)
        if 0 < self.max_age < self.alpha:
            fix = f"must be at least staleness.alpha ({self.alpha}), or 0"
            raise ConfigError("staleness.max_age", self.max_age, fix)

    def free_groups(self, untrained: int, *, consumed: int, groups_per_step: int) -> int:
        """Return how many more groups may start.

        Consumed in order, a group behind `n` others trains `n // groups_per_step` steps later.
        A trained group stays outstanding until the weights it produced are served: released
        earlier, its successor would be born one version stale. In a window "ahead" no more than
        `alpha` batches are untrained, and what is consumed does not count.
        """
        if self.window == "ahead":
            return max(0, self.alpha * groups_per_step - untrained)
        return max(0, (self.alpha + 1) * groups_per_step - untrained - consumed)

    @property
    def oldest(self) -> int:
        """Most optimizer steps that trained work may lag: alpha, or more where it may be late."""
        if self.at_bound != "finish" or not self.alpha:
            return self.alpha
        return self.max_age or 3 * self.alpha + 2

    def judge(self, *, optimizer: Version, served: Version) -> Version:
        """Return the version ages are counted against."""
        return optimizer if self.counting == "optimizer" else served

    def is_fresh(self, born: Version, *, optimizer: Version, served: Version) -> bool:
        """Say whether a step that starts from `optimizer` may train on work born of `born`."""
        return self.judge(optimizer=optimizer, served=served) - born <= self.oldest

    def may_train(self, *, optimizer: Version, served: Version) -> bool:
        """Say whether a step may start: engines must not be left too far behind.

        The paper's counting needs them one step behind. In a window "ahead" nothing else bounds
        how many versions pass while the slowest loads one, and the store keeps `alpha` more.
        """
        behind = optimizer - served
        if self.counting == "serving":
            return behind <= 1
        return self.window == "served" or behind <= self.alpha

    def find_endangered(
        self,
        *,
        rolling: "Ages",
        late: "Ages",
        ready: "Ages",
        optimizer: Version,
        groups_per_step: int,
        spare: int = 0,
    ) -> dict[Version, int]:
        """Return the versions of whose running work a step would spoil some that waiting can save.

        Work born of `v` or before may train until `v + oldest`. It is in danger if more of it runs,
        `late` groups apart, than the steps after this one can take by then, and `spare` groups that
        may be lost, while this batch has room for more. Each version comes with how many are safe.
        """
        safe = {
            born: max(0, born + self.oldest - optimizer) * groups_per_step + spare
            for born in rolling.versions
        }
        return {
            born: count
            for born, count in safe.items()
            if rolling.count(until=born) - late.count(until=born) > count
            and ready.count(until=born) < groups_per_step
        }


class Ages:
    """Groups by the version they were born of."""

    def __init__(self) -> None:
        self._by_born: dict[Version, set[GroupId]] = {}

    def add(self, group: GroupId, *, born: Version) -> None:
        """Note a group's birth."""
        self._by_born.setdefault(born, set()).add(group)

    def remove(self, group: GroupId, *, born: Version) -> None:
        """Forget a group."""
        groups = self._by_born[born]
        groups.remove(group)
        if not groups:
            del self._by_born[born]

    def discard(self, group: GroupId, *, born: Version) -> bool:
        """Forget a group if it is here; return whether it was."""
        is_here = group in self._by_born.get(born, ())
        if is_here:
            self.remove(group, born=born)
        return is_here

    def clear(self) -> None:
        """Forget all groups."""
        self._by_born.clear()

    @property
    def versions(self) -> list[Version]:
        """The versions that groups were born of, in no order."""
        return list(self._by_born)

    def count(self, *, until: Version) -> int:
        """Return how many groups were born of a version or an older one."""
        return sum([len(groups) for born, groups in self._by_born.items() if born <= until])

    def older_than(self, version: int) -> list[GroupId]:
        """Return the groups born before a version, in id order."""
        return sorted(
            group for born, groups in self._by_born.items() if born < version for group in groups
        )

    def __iter__(self) -> Iterator[GroupId]:
        return chain.from_iterable(self._by_born.values())

    def __len__(self) -> int:
        return sum(len(groups) for groups in self._by_born.values())
