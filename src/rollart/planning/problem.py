"""Problem: the hardware, the model and the tasks that a plan is made for.

A `Problem` that exists can be solved: some pool can train the model, some pool can serve it, and
both at once, because `__post_init__` refuses all others with the field to change.
"""

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Literal

from rollart.config.simulation import Constants, ScoringOptions
from rollart.control.routing import Routing
from rollart.control.rules import Redundancy, Rules
from rollart.errors import ConfigError, UserError
from rollart.hardware.gpus import Gpu, link_named
from rollart.hardware.models import ModelShape
from rollart.sim.costs import USUAL_LINK, EngineCosts
from rollart.sim.workload import TaskProfile

Role = Literal["any", "train", "rollout"]
Objective = Literal["throughput", "cost"]

_TPS = (1, 2, 4, 8, 16)
"""Tensor-parallel sizes to choose from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """GPUs of one kind, and what they may be used for.

    Example:
        Pool(name="h800", gpu=gpu_named("H800"), count=96).node == 8

    """

    name: str
    gpu: Gpu
    count: int
    role: Role = "any"
    tp: int = 0
    """Tensor parallelism of its engines; 0: the planner chooses."""
    prefill: int = 0
    """Prefill engines of one unit; 0 for both prefill and decode: the planner chooses."""
    decode: int = 0
    """Decode engines of one unit."""
    price: float = 0.0
    """Price of one GPU hour; 0: the hardware table's price, relative to one H20."""
    link: str = ""
    """The link to and from the weight store; empty: the default link."""

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigError(f"pools.{self.name}.count", self.count, "must be at least 1")

    @property
    def hour_price(self) -> float:
        """Price of one GPU hour."""
        return self.price or self.gpu.cost

    @property
    def node(self) -> int:
        """GPUs of one of its nodes."""
        return min(self.gpu.gpus_per_node, self.count)

    @property
    def engine_units(self) -> int:
        """Engines of one unit: those of a fixed split, or one."""
        return max(1, self.prefill + self.decode)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """What is to be planned.

    Example:
        Problem(model=model_named("Qwen3-8B"), tasks=(TaskProfile(name="math", turns=(2, 4)),),
                pools=(Pool(name="h800", gpu=gpu_named("H800"), count=16),), rules=rules)

    """

    model: ModelShape
    pools: tuple[Pool, ...]
    tasks: tuple[TaskProfile, ...]
    rules: Rules
    """The schedule; alpha, redundancy and batch as the user set them."""
    routing: Routing = field(default_factory=Routing)
    objective: Objective = "throughput"
    alphas: tuple[int, ...] = ()
    """Staleness bounds to choose from; empty: the one in `rules`."""
    extra_groups: tuple[int, ...] = ()
    """Numbers of redundant groups to choose from; empty: the one in `rules`."""
    may_split: bool = True
    """Whether the planner may give prefill and decode separate engines."""
    most_slots: int = 0
    """Most environments that can run at once; 0: no limit."""
    reuse_prefixes: bool = True
    """Whether engines keep an episode's keys and values between its turns."""
    blocking_weights: bool = False
    """Whether engines pause while weights are broadcast."""
    constants: Constants = field(default_factory=Constants)
    rewards: ScoringOptions = field(default_factory=ScoringOptions)

    def __post_init__(self) -> None:
        if not self.pools:
            fix = 'name the hardware: [pools.h800] class = "H800" count = 8'
            raise ConfigError("pools", {}, fix)
        if self.most_slots < 0:
            raise ConfigError("run.environments", self.most_slots, "must be at least 1")
        priced = [pool.name for pool in self.pools if pool.price]
        if priced and len(priced) < len(self.pools):
            bare = next(pool for pool in self.pools if not pool.price)
            fix = "give every pool a price, or none: the defaults are relative to an hour of an H20"
            raise ConfigError(f"pools.{bare.name}.price", bare.price, fix)
        self._check_heads()
        self._check_roles()
        self._check_room()

    def _check_heads(self) -> None:
        heads = self.model.heads
        for pool in self.pools:
            if pool.role != "train" and pool.tp > pool.count:
                fix = f"the pool has {pool.count} GPUs: raise count or lower tp"
                raise ConfigError(f"pools.{pool.name}.tp", pool.tp, fix)
            if pool.tp and heads % pool.tp:
                sizes = ", ".join(str(tp) for tp in _TPS if heads % tp == 0)
                fix = f"must divide the {heads} attention heads of {self.model.name}: take {sizes}"
                raise ConfigError(f"pools.{pool.name}.tp", pool.tp, fix)

    def _check_room(self) -> None:
        """Refuse hardware on which the smallest training leaves no GPUs for an engine."""
        needs = {
            pool.name: min(self.tps(pool)) * pool.engine_units
            for pool in self.pools
            if pool.role != "train" and self.tps(pool)
        }
        fewest = {pool: min(self.train_counts(pool), default=0) for pool in self.trainers}
        trainers = {pool: count for pool, count in fewest.items() if count}
        for trainer, training in trainers.items():
            for pool in self.pools:
                left = pool.count - (training if pool is trainer else 0)
                if left >= needs.get(pool.name, left + 1):
                    return
        tight = next((pool for pool in trainers if pool.name in needs), None)
        if tight is not None:
            raise ConfigError(
                f"pools.{tight.name}.count",
                tight.count,
                f"{self.model.name} needs {trainers[tight]} of them to train, and the rest is too "
                f"small for an engine of {needs[tight.name]} GPUs: raise count or add a pool",
            )
        small = next(pool for pool in self.pools if pool.name in needs)
        fix = f"must hold at least one engine, or unit of engines, of {needs[small.name]} GPUs"
        raise ConfigError(f"pools.{small.name}.count", small.count, fix)

    def _check_roles(self) -> None:
        training = [pool for pool in self.pools if pool.role == "train"]
        if len(training) > 1:
            fix = (
                f"only one pool can train, and {training[0].name} already does; set rollout or any"
            )
            raise ConfigError(f"pools.{training[1].name}.role", "train", fix)
        trainers = self.trainers
        if not trainers:
            raise UserError(
                'no GPU is left for training: every pool has role = "rollout"; '
                'set pools.NAME.role = "any" or "train" for one of them'
            )
        if not any(self.train_counts(pool) for pool in trainers):
            need = self.model.parameters * self.constants.state_bytes
            raise UserError(
                f"{self.model.name} cannot be trained on any pool: weights, gradients and "
                f"optimizer need {need:,.0f} GB, and {_sizes(trainers)}; add GPUs"
            )
        servers = [pool for pool in self.pools if pool.role != "train"]
        if not any(self.tps(pool) for pool in servers):
            raise self._no_engine(servers)
        unlendable = [pool for pool in trainers if not self.tps(pool)]
        if self.rules.lending.enabled and unlendable:
            fix = f"{self.model.name} fits on no engine of {unlendable[0].name}: set it to false"
            raise ConfigError("lending.enabled", True, fix)

    def _no_engine(self, servers: list[Pool]) -> UserError:
        if not servers:
            return UserError(
                'no GPU is left to roll out: every pool has role = "train"; '
                'set pools.NAME.role = "any" or "rollout" for one of them'
            )
        fixed = ", ".join(f"pools.{p.name}.tp = {p.tp}" for p in servers if p.tp)
        more = f" (with {fixed})" if fixed else ""
        return UserError(
            f"{self.model.name} fits on no pool{more}: an engine needs "
            f"{self.model.weight_bytes / 1e9:,.0f} GB for weights and room for an episode of "
            f"{self.longest_tokens} tokens, and {_nodes(servers)}; use GPUs with more memory"
        )

    @property
    def trainers(self) -> list[Pool]:
        """The pools that may train."""
        training = [pool for pool in self.pools if pool.role == "train"]
        return training or [pool for pool in self.pools if pool.role == "any"]

    @property
    def longest_tokens(self) -> int:
        """Tokens of the longest episode allowed."""
        return max(task.max_tokens for task in self.tasks)

    @property
    def attempts(self) -> int:
        """Attempts trained in one step."""
        return self.rules.batching.groups_per_step * self.rules.batching.group_size

    @property
    def alpha(self) -> int:
        """The staleness bound that the user set."""
        return self.rules.mode.staleness(self.rules.staleness).alpha

    def worth(self, step_s: float, *, hour_price: float) -> float:
        """Return the objective value of a step time: the time, or its price; less is better."""
        return step_s / 3600 * hour_price if self.objective == "cost" else step_s

    def window_steps(self, *, alpha: int, extra_groups: int) -> float:
        """Return how many steps' worth of groups may be outstanding."""
        groups = self.rules.batching.groups_per_step
        rule = replace(self.rules.staleness, alpha=alpha)
        free = rule.free_groups(0, consumed=0, groups_per_step=groups)
        return (free + extra_groups) / groups

    @property
    def is_served_counted(self) -> bool:
        """Whether a group is outstanding until its weights are served, not just until it trains."""
        return self.rules.staleness.window == "served"

    def most_attempts(self, *, alpha: int, extra_groups: int) -> int:
        """Return the most attempts the schedule has outstanding at once."""
        batching = self.rules.batching
        steps = self.window_steps(alpha=alpha, extra_groups=extra_groups)
        members = self.rules.redundancy.members(batching.group_size)
        return round(steps * batching.groups_per_step) * members

    def weights_link(self, pools: tuple[Pool, ...]) -> str:
        """Return the slowest link over which new weights reach some pools."""
        links = [pool.link or USUAL_LINK for pool in pools]
        return min(links, key=lambda link: link_named(link).weights_gb_s)

    def tps(self, pool: Pool) -> tuple[int, ...]:
        """Return the tensor-parallel sizes with which a pool can serve the model."""
        heads = self.model.heads
        sizes = (pool.tp,) if pool.tp else tuple(tp for tp in _TPS if heads % tp == 0)
        return tuple(tp for tp in sizes if tp <= pool.node and self._fits(pool.gpu, tp))

    def train_counts(self, pool: Pool) -> tuple[int, ...]:
        """Return how many of a pool's GPUs can train the model.

        Whole nodes or all of them; of a single node, powers of two or all.
        """
        if pool.role == "rollout":
            return ()
        parts = list(range(pool.node, pool.count, pool.node))
        if pool.node == pool.count:
            parts = [1 << power for power in range((pool.count - 1).bit_length())]
        if pool.role == "train":
            parts = []
        return tuple(n for n in [*parts, pool.count] if self._trains(pool.gpu, n))

    def engine_costs(self, gpu: Gpu, tp: int) -> EngineCosts:
        """Return the step costs of an engine."""
        return _engine_costs(self.model, gpu, tp, self.constants)

    def with_redundancy(self, extra_groups: int) -> Redundancy:
        """Return the redundancy rule with `extra_groups` extra groups."""
        return replace(self.rules.redundancy, extra_groups=extra_groups)

    def most_extra_groups(self, extra_groups: int) -> int:
        """Return the most extra groups a run may have, if it adapts their number."""
        rule = self.rules.redundancy
        groups = self.rules.batching.groups_per_step
        most = rule.most_extra_groups(groups) if rule.adaptive else 0
        return max(extra_groups, most)

    def _fits(self, gpu: Gpu, tp: int) -> bool:
        room = tp * gpu.memory_bytes * self.constants.memory_share - self.model.weight_bytes
        return room >= self.longest_tokens * self.model.kv_bytes_over(tp)

    def _trains(self, gpu: Gpu, count: int) -> bool:
        room = count * gpu.memory_bytes * self.constants.memory_share
        return room >= self.model.parameters * 1e9 * self.constants.state_bytes


@cache
def _engine_costs(model: ModelShape, gpu: Gpu, tp: int, constants: Constants) -> EngineCosts:
    return EngineCosts(model=model, gpu=gpu, tp=tp, constants=constants)


def _sizes(pools: list[Pool]) -> str:
    return ", ".join(f"{p.name} has {p.count * p.gpu.memory_gb:,.0f}" for p in pools)


def _nodes(pools: list[Pool]) -> str:
    return ", ".join(f"a node of {p.name} has {p.node * p.gpu.memory_gb:,.0f} GB" for p in pools)
