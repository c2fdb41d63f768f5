"""The schema: one frozen `Config` whose sections are the option and rule classes themselves.

A section is validated where it is defined; what concerns two sections is checked here. A `Config`
that exists is therefore a config that can run. The scheduler's rules are inherited from
`RuleSections`, the one list of them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from rollart.config.fields import chosen, named
from rollart.config.options import EngineOptions, RayOptions, RunOptions, TaskOptions, WeightOptions
from rollart.config.pools import (
    LENT,
    LOCAL,
    AffinityOptions,
    PoolOptions,
    Preferences,
    RoutingOptions,
)
from rollart.config.simulation import SimulationOptions
from rollart.control.routing import Routing
from rollart.control.rules import MODES, Mode, Rules, RuleSections
from rollart.errors import ConfigError
from rollart.models.options import LanguagePolicy, ModelOptions
from rollart.plugins import name_of
from rollart.rewards.invoke.options import InvokerOptions
from rollart.sandbox.options import SandboxOptions
from rollart.training.algorithms.grpo import Grpo
from rollart.training.options import TrainingOptions, check_algorithm
from rollart.training_ports import Algorithm, PolicyOptions
from rollart.types import Sampling

_OF_THE_LOSS = (
    "aggregation",
    "constant_tokens",
    "clip_low",
    "clip_high",
    "correction",
    "correction_cap",
    "kl_coefficient",
    "kl_estimator",
    "entropy_coefficient",
    "dual_clip",
    "mask_truncated_completions",
)
_OF_OTHERS = {
    "clip_ratio_c": "dual_clip",
    "delta": "dual_clip",
    "dual_clip_loss": "dual_clip",
    "clip_ratio_low": "clip_low",
    "clip_ratio_high": "clip_high",
    "epsilon": "clip_low",
    "epsilon_high": "clip_high",
    "beta": "kl_coefficient",
    "kl_loss_coef": "kl_coefficient",
    "kl_loss_type": "kl_estimator",
    "entropy_coeff": "entropy_coefficient",
    "loss_agg_mode": "aggregation",
    "loss_type": "aggregation",
    "overlong_filter": "mask_truncated_completions",
    "overlong_filtering": "mask_truncated_completions",
}
"""Keys of `[algorithm]` as verl, TRL and ROLL call them."""
MOVED: Mapping[str, str] = {
    "training.advantage": "algorithm.type",
    "training.loss": "algorithm.type",
    **{f"training.{name}": f"algorithm.{name}" for name in _OF_THE_LOSS},
    **{
        f"{section}.{name}": f"algorithm.{key}"
        for section in ("algorithm", "training")
        for name, key in _OF_OTHERS.items()
    },
}
"""Keys of earlier versions, or that people expect in another section, and the key they mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(RuleSections):
    """Everything a run is determined by.

    Example:
        >>> Config(tasks={"lake": TaskOptions(env="frozen_lake")}).rules.mode.name
        'rollart'

    """

    run: RunOptions = field(default_factory=RunOptions)
    """What a run is called, how long it is, which files it writes."""
    model: ModelOptions = field(default_factory=ModelOptions)
    """The policy: a tiny built-in model or any Hugging Face checkpoint."""
    policy: PolicyOptions = field(default_factory=LanguagePolicy, metadata=chosen("policy"))
    """What kind of policy it is: its type says which keys there are."""
    tasks: Mapping[str, TaskOptions]
    """The mix of problems, by name: [tasks.NAME]."""
    sampling: Sampling = field(default_factory=Sampling)
    """How tokens are drawn during rollout."""
    engine: EngineOptions = field(default_factory=EngineOptions)
    """Which inference engine samples the tokens."""
    training: TrainingOptions = field(default_factory=TrainingOptions)
    """How a batch becomes an optimizer step."""
    algorithm: Algorithm = field(default_factory=Grpo, metadata=chosen("algorithm"))
    """How rewards become a gradient: advantages and loss; its type says which keys there are."""
    routes: RoutingOptions = field(default_factory=RoutingOptions, metadata=named("routing"))
    """Which engine completes a request."""
    weights: WeightOptions = field(default_factory=WeightOptions)
    """How weights travel from the trainer to the engines."""
    pools: Mapping[str, PoolOptions] = field(default_factory=dict[str, PoolOptions])
    """The hardware, by name: [pools.NAME]; none: engine.replicas engines on this machine."""
    affinity: AffinityOptions = field(default_factory=AffinityOptions)
    """Which pools each phase and each task domain prefers."""
    ray: RayOptions = field(default_factory=RayOptions)
    """Which cluster the run is on."""
    rewards: InvokerOptions = field(default_factory=InvokerOptions)
    """Where reward functions run and how hard their scores are tried for."""
    sandbox: SandboxOptions = field(default_factory=SandboxOptions)
    """Where reward functions run programs that a model wrote."""
    simulation: SimulationOptions = field(default_factory=SimulationOptions)
    """What `rollart simulate` and `rollart plan` take for granted."""

    def __post_init__(self) -> None:
        self._check_pools()
        self._check_tasks()
        self._check_sampling()
        self._check_groups()
        self._check_versions()
        self._check_ranks()

    @property
    def mode(self) -> Mode:
        """The schedule as a row of decisions."""
        return MODES[self.run.mode]

    @property
    def rules(self) -> Rules:
        """Everything the scheduler decides by."""
        run = self.run
        return Rules(steps=run.steps, seed=run.seed, mode=self.mode, **self.sections)

    @property
    def preferences(self) -> Preferences:
        """Which pools are preferred, with what is left open filled in."""
        return self.affinity.resolve(self.pools)

    @property
    def routing(self) -> Routing:
        """How requests find engines, as a rule."""
        return Routing(
            affinity=self.preferences.tasks, sticky=self.routes.sticky, learn=self.routes.learn
        )

    @property
    def attempts_per_step(self) -> int:
        """Attempts trained in one optimizer step."""
        return self.batching.groups_per_step * self.batching.group_size

    def _check_tasks(self) -> None:
        if not self.tasks:
            raise ConfigError("tasks", {}, 'add one: [tasks.lake] with env = "frozen_lake"')
        if not any(task.weight for task in self.tasks.values()):
            weights = [task.weight for task in self.tasks.values()]
            raise ConfigError("tasks.*.weight", weights, "at least one must be more than 0")
        longest = self.engine.torch.max_length
        if not self.engine.is_torch:
            return
        for name, task in self.tasks.items():
            if task.max_tokens > longest:
                fix = f"must be at most engine.torch.max_length ({longest}); lower it or raise that"
                raise ConfigError(f"tasks.{name}.max_tokens", task.max_tokens, fix)

    def _check_sampling(self) -> None:
        sampling = self.sampling
        if self.run.evaluate_greedy and not isinstance(self.policy, LanguagePolicy):
            fix = "only a policy that writes tokens can take the likeliest: leave it out"
            raise ConfigError("run.evaluate_greedy", True, fix)
        if not sampling.temperature > 0:
            fix = "training needs random draws; use more than 0 (`rollart eval` may use 0)"
            raise ConfigError("sampling.temperature", sampling.temperature, fix)
        if not 0 < sampling.top_p <= 1:
            raise ConfigError("sampling.top_p", sampling.top_p, "must be in (0, 1]")
        if not 0 <= sampling.min_p <= 1:
            raise ConfigError("sampling.min_p", sampling.min_p, "must lie between 0 and 1")
        if sampling.top_k < 0:
            raise ConfigError("sampling.top_k", sampling.top_k, "must be at least 0 (0: all)")
        if sampling.max_tokens < 1:
            raise ConfigError("sampling.max_tokens", sampling.max_tokens, "must be at least 1")

    def _check_groups(self) -> None:
        size = self.batching.group_size
        check_algorithm(self.algorithm)
        least = self.algorithm.needs.min_group_size
        if size < least:
            name = name_of("algorithm", type(self.algorithm))
            fix = f'algorithm "{name}" compares attempts: use at least {least}'
            raise ConfigError("batching.group_size", size, fix)
        if self.batching.min_members > size:
            fix = f"must be at most batching.group_size ({size})"
            raise ConfigError("batching.min_members", self.batching.min_members, fix)
        if self.filter.drop_zero_variance and size == 1:
            fix = "every group of one has zero variance; raise batching.group_size or set false"
            raise ConfigError("filter.drop_zero_variance", True, fix)

    def _check_pools(self) -> None:
        for name in self.pools:
            if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name) or name in (LENT, LOCAL):
                fix = f"name pools with letters, digits, '_' and '-', and not {LENT!r} or {LOCAL!r}"
                raise ConfigError("pools", name, fix)
        if self.pools and self.engine.replicas != 1:
            fix = "where there are pools, their count says how many engines: leave it out"
            raise ConfigError("engine.replicas", self.engine.replicas, fix)
        self.affinity.check(self.pools)

    @property
    def kept_versions(self) -> int:
        """Versions of the weights the store keeps.

        While an engine loads version n, batches it began may be trained up to n + alpha, or later
        where extra groups make whole batches, and the last of them published.
        """
        return self.weights.keep or self._least_versions

    @property
    def _least_versions(self) -> int:
        redundancy, per_step = self.redundancy, self.batching.groups_per_step
        extra = redundancy.extra_groups
        if redundancy.adaptive:
            extra = redundancy.most_extra_groups(per_step)
        return self.mode.staleness(self.staleness).alpha + extra // per_step + 2

    def _check_versions(self) -> None:
        if 0 < self.weights.keep < self._least_versions:
            fix = f"engines may still be loading one of {self._least_versions}: keep as many, or 0"
            raise ConfigError("weights.keep", self.weights.keep, fix)

    def _check_ranks(self) -> None:
        if self.training.ranks > 1 and self.weights.store == "memory":
            fix = 'ranks are processes of their own: weights.store must not be "memory"'
            raise ConfigError("training.ranks", self.training.ranks, fix)
