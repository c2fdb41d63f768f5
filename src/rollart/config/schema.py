"""The schema: one frozen `Config` whose sections are the option and rule classes themselves.

A section is validated where it is defined; what concerns two sections is checked here. A `Config`
that exists is therefore a config that can run.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rollart.config.affinity import LENT, LOCAL, AffinityOptions, Preferences, RoutingOptions
from rollart.config.keys import chosen, named
from rollart.config.pools import PoolOptions, ProfileOptions
from rollart.config.ray import RayOptions
from rollart.config.rewards import RewardPart, check_parts
from rollart.config.simulation import SimulationOptions
from rollart.config.weights import WeightOptions
from rollart.control.lending import Lending
from rollart.control.routing import Routing
from rollart.control.rules import (
    MODES,
    Batching,
    Dispatch,
    Filter,
    Mode,
    ModeName,
    Redundancy,
    Retry,
    Syncing,
)
from rollart.control.staleness import Staleness
from rollart.errors import ConfigError
from rollart.inference.torch.options import TorchEngineOptions
from rollart.models.options import ModelOptions
from rollart.plugins import name_of
from rollart.ports import Algorithm
from rollart.rewards.invoke.options import InvokerOptions
from rollart.sandbox.options import SandboxOptions
from rollart.training.algorithms.grpo import Grpo
from rollart.training.options import TrainingOptions, check_algorithm
from rollart.types import Sampling

_OF_THE_LOSS = (
    "aggregation",
    "constant_tokens",
    "clip_low",
    "clip_high",
    "correction",
    "correction_cap",
    "kl_coefficient",
    "entropy_coefficient",
)
MOVED: Mapping[str, str] = {
    "training.advantage": "algorithm.type",
    **{f"training.{name}": f"algorithm.{name}" for name in _OF_THE_LOSS},
}
"""Keys of earlier versions, and what they are called now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What a run is called, how long it is, what it leaves behind."""

    name: str = "run"
    """Names the run; "{name}" in the directory stands for it."""
    directory: str = "runs/{name}"
    """Where the run's files go."""
    seed: int = 0
    """Seeds tasks, sampling, evaluations, the scheduler's draws, and all of a simulated run.

    Seeded apart: the model (model.seed), training (training.seed), waits between deliveries of a
    reward call (rewards.reliability.seed)."""
    steps: int = 100
    """Optimizer steps to make."""
    mode: ModeName = "rollart"
    """The schedule: how rollout, training and weight updates overlap.

    sync: environments step together, then training; sync_plus: each trajectory by itself, then
    training; one_off: training on the last batch beside rollout; areal: trajectories may span
    updates, bounded at their start; rollart: bounded at every turn, routed by affinity."""
    environments: int = 64
    """Environment slots: episodes that run at once."""
    checkpoint_every: int = 50
    """Steps between checkpoints; 0 writes only the last one."""
    keep_checkpoints: int = 2
    """Newest checkpoints kept."""
    evaluate_every: int = 0
    """Steps between evaluations; 0 evaluates only before and after training.

    Where training goes on beside it, weights may change under the episodes it has begun."""
    evaluate_episodes: int = 200
    """Episodes of one evaluation, held out where the environment divides its problems; 0: never."""
    samples: int = 2
    """Trajectories of each step written as readable text: `samples/step-STEP-TRAJECTORY.txt`."""
    import_paths: tuple[str, ...] = ()
    """Directories searched for your own modules; by default the config file's own directory."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", self.name):
            raise ConfigError("run.name", self.name, "use letters, digits, '.', '_' and '-' only")
        if not self.directory:
            raise ConfigError("run.directory", self.directory, "must name a directory")
        for name in ("steps", "environments", "keep_checkpoints"):
            if getattr(self, name) < 1:
                raise ConfigError(f"run.{name}", getattr(self, name), "must be at least 1")
        for name in ("checkpoint_every", "evaluate_every", "evaluate_episodes", "samples"):
            if getattr(self, name) < 0:
                raise ConfigError(f"run.{name}", getattr(self, name), "must be at least 0")
        if self.seed < 0:
            raise ConfigError("run.seed", self.seed, "must be at least 0")

    @property
    def path(self) -> Path:
        """The run's directory."""
        return Path(self.directory.replace("{name}", self.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """One kind of problem in the mix: an environment and the limits of its episodes."""

    env: str
    """frozen_lake, calculator, number_guess; your own: "module:Class" or "path/to/file.py:Class".

    Modules are found next to the config; paths start where the command was started."""
    domain: str = ""
    """The tag requests are routed by; empty takes the task's name."""
    weight: float = 1.0
    """Its share of the mix, relative to the other tasks' weights."""
    max_turns: int = 8
    """Turns after which an episode is cut off."""
    max_tokens: int = 1024
    """Tokens, read and sampled, after which an episode is cut off."""
    parser: str = ""
    """"module:function" that turns a completion's text into an action; empty strips it."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Keyword arguments of the environment's class."""
    rewards: Mapping[str, RewardPart] = field(default_factory=dict[str, RewardPart])
    """Functions that score its attempts: [tasks.NAME.rewards.PART]; none: the environment does."""
    reset_timeout_s: float = 30.0
    """Longest a reset may take before the environment counts as hung."""
    step_timeout_s: float = 30.0
    """Longest a step may take before the environment counts as hung."""
    episode_timeout_s: float = 600.0
    """Longest a whole episode may take."""
    profile: ProfileOptions = field(default_factory=ProfileOptions)
    """How its episodes behave, for the planner."""

    def __post_init__(self) -> None:
        if not self.env:
            raise ConfigError("tasks.env", self.env, 'name an environment, or "module:Class"')
        if self.weight < 0:
            raise ConfigError("tasks.weight", self.weight, "must be at least 0")
        for name, least in (("max_turns", 1), ("max_tokens", 2)):
            if getattr(self, name) < least:
                raise ConfigError(f"tasks.{name}", getattr(self, name), f"must be at least {least}")
        for name in ("reset_timeout_s", "step_timeout_s", "episode_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"tasks.{name}", getattr(self, name), "must be more than 0")
        if self.parser and not re.fullmatch(r"[\w.]+:\w+", self.parser):
            fix = 'must read "module:function", or be empty'
            raise ConfigError("tasks.parser", self.parser, fix)
        check_parts(self.rewards)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Which inference engine samples the tokens, and how many replicas of it."""

    name: Literal["torch"] = "torch"
    """The engine; its own options are in the section of that name."""
    replicas: int = 1
    """Engines that serve at once."""
    torch: TorchEngineOptions = field(default_factory=TorchEngineOptions)
    """Options of the engine "torch"."""

    def __post_init__(self) -> None:
        if self.replicas < 1:
            raise ConfigError("engine.replicas", self.replicas, "must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Everything a run is determined by."""

    run: RunOptions = field(default_factory=RunOptions)
    """What a run is called, how long it is, what it leaves behind."""
    model: ModelOptions = field(default_factory=ModelOptions)
    """The policy: a tiny built-in model or any Hugging Face checkpoint."""
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
    batching: Batching = field(default_factory=Batching)
    """Sizes of groups and batches."""
    staleness: Staleness = field(default_factory=Staleness)
    """How old trained work may be."""
    redundancy: Redundancy = field(default_factory=Redundancy)
    """How much more is started than will be trained."""
    retry: Retry = field(default_factory=Retry)
    """What follows an infrastructure failure."""
    filter: Filter = field(default_factory=Filter)
    """Which complete groups teach something."""
    syncing: Syncing = field(default_factory=Syncing)
    """How engines change weights."""
    lending: Lending = field(default_factory=Lending)
    """When idle training hardware serves rollout."""
    dispatch: Dispatch = field(default_factory=Dispatch)
    """Which task is opened next."""
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
        for name, task in self.tasks.items():
            if task.max_tokens > longest:
                fix = f"must be at most engine.torch.max_length ({longest}); lower it or raise that"
                raise ConfigError(f"tasks.{name}.max_tokens", task.max_tokens, fix)

    def _check_sampling(self) -> None:
        sampling = self.sampling
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
