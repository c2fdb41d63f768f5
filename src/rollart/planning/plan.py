"""Plan: one answer to a problem, as values.

A plan says which GPUs train, how the others are divided into engines, which pool serves which task,
and the few numbers of the schedule that go with it. Equal plans have equal keys, so a search
simulates each plan once.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from rollart.planning.problem import Pool, Problem

ANYWHERE = ""
"""Serves a task on the least busy engine of any pool."""

SPLITS = ((1, 1), (1, 2), (1, 3), (2, 1))
"""Numbers of prefill and decode engines of a unit that the planner may choose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolShare:
    """The GPUs of a pool that roll out.

    Example:
        PoolShare(pool=h800, gpus=66, tp=4).engines == 16  # and 2 GPUs are idle

    """

    pool: Pool
    gpus: int
    tp: int
    prefill: int = 0
    decode: int = 0

    @property
    def engines(self) -> int:
        """Engines, or units of prefill and decode engines."""
        return self.gpus // (self.tp * max(1, self.prefill + self.decode))

    @property
    def idle(self) -> int:
        """GPUs that are too few for another engine."""
        return self.gpus - self.engines * self.tp * max(1, self.prefill + self.decode)

    @property
    def is_split(self) -> bool:
        """Whether prefill and decode have engines of their own."""
        return self.prefill > 0

    def __str__(self) -> str:
        split = f", {self.prefill}P{self.decode}D" if self.is_split else ""
        return f"{self.gpus} {self.pool.name} (tp {self.tp}{split})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which GPUs do what.

    Example:
        Plan(train=h800, train_gpus=32, rollout=(PoolShare(pool=h800, gpus=64, tp=4),),
             serves={"math": "h800", "swe": ANYWHERE}, alpha=1, extra_groups=3, slots=256)

    """

    train: Pool
    train_gpus: int
    rollout: tuple[PoolShare, ...]
    serves: Mapping[str, str]
    """The pool of each task, or ANYWHERE."""
    alpha: int
    extra_groups: int
    slots: int
    """Environments that run at once."""

    @property
    def key(self) -> str:
        """A text that is the same for equal plans only."""
        table = ",".join(f"{task}>{pool}" for task, pool in sorted(self.serves.items()))
        return f"{self} | {table} | {self.alpha} {self.extra_groups} {self.slots}"

    @property
    def rollout_pools(self) -> tuple[Pool, ...]:
        """The pools that roll out."""
        return tuple(share.pool for share in self.rollout)

    @property
    def hour_price(self) -> float:
        """Price of an hour of all its GPUs."""
        rollout = sum(share.gpus * share.pool.hour_price for share in self.rollout)
        return self.train_gpus * self.train.hour_price + rollout

    @property
    def affinity(self) -> dict[str, tuple[str, ...]]:
        """The routing table: the pool of each task, then the other pools as fallbacks."""
        names = [share.pool.name for share in self.rollout]
        return {
            task: (pool, *(name for name in names if name != pool))
            for task, pool in self.serves.items()
            if pool != ANYWHERE
        }

    def unused(self, problem: Problem) -> dict[str, int]:
        """Return how many GPUs of each pool the plan does not use."""
        used = {share.pool.name: share.gpus for share in self.rollout}
        used[self.train.name] = used.get(self.train.name, 0) + self.train_gpus
        left = {pool.name: pool.count - used.get(pool.name, 0) for pool in problem.pools}
        return {name: count for name, count in left.items() if count}

    @property
    def idle(self) -> dict[str, int]:
        """How many GPUs of each rollout pool are left over after it is divided into engines."""
        return {share.pool.name: share.idle for share in self.rollout if share.idle}

    def __str__(self) -> str:
        rollout = " + ".join(str(share) for share in self.rollout)
        return f"{self.train_gpus} {self.train.name} train, {rollout} roll out"
