"""The plain sections of a config: the run, its tasks and their rewards, engines, weights, cluster.

Each class checks its own fields when it is made, so an object that exists is valid by itself; what
concerns two sections is checked in `schema`. A task's reward is the sum of weight × value over its
parts. Loading a config imports none of the user's code, so reward functions and their options are
checked later, before a run starts (`check_rewards`); an error names the key in the config.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rollart.errors import ConfigError
from rollart.rewards.registry import check_options, is_group_function, shipped_name
from rollart.rewards.weighted import read_terms

if TYPE_CHECKING:
    from rollart.rewards.chat import Judge
from pathlib import Path
from typing import Annotated, Literal

from rollart.config.simulation import ProfileOptions
from rollart.constraints import (
    AtLeast,
    Finite,
    Matches,
    MoreThan,
    MultipleOf,
    NonEmpty,
    check_fields,
)
from rollart.control.rules import ModeName
from rollart.inference.torch.options import TorchEngineOptions
from rollart.plugins import check_name

_SUMS = ("weighted", "weighted_group")
_JUDGES = ("judge", "pairwise")


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardPart:
    """One part of a task's reward."""

    function: str
    """A shipped function's name, or "module:function" of your own."""
    weight: float = 1.0
    """What its value is multiplied by before the parts are added up."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Keyword arguments of the function."""

    def __post_init__(self) -> None:
        if not self.function:
            fix = 'name a shipped function, or "module:function"'
            raise ConfigError("rewards.function", self.function, fix)
        if not math.isfinite(self.weight):
            raise ConfigError("rewards.weight", self.weight, "must be a finite number")


def check_parts(parts: Mapping[str, RewardPart]) -> None:
    """Refuse names of parts that the metrics could not show."""
    for name in parts:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]*", name):
            fix = "name parts with letters, digits, '_' and '-'"
            raise ConfigError("tasks.rewards", name, fix)
    if parts and not any(part.weight for part in parts.values()):
        weights = {name: part.weight for name, part in parts.items()}
        raise ConfigError("tasks.rewards", weights, "at least one weight must not be 0")


def check_rewards(task: str, parts: Mapping[str, RewardPart]) -> None:
    """Find a task's functions and see that they take their options."""
    for name, part in parts.items():
        try:
            for function, options in walk(part.function, part.options):
                check_options(function, options)
                judge_pool(function, options)
        except ConfigError as error:
            key = error.field.removeprefix("reward.")
            raise ConfigError(
                f"tasks.{task}.rewards.{name}.{key}", error.value, error.fix
            ) from None


def walk(function: str, options: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Give a function with its options, then those it adds up, if it is a shipped sum."""
    yield function, options
    if shipped_name(function) in _SUMS:
        for term in read_terms(options.get("terms")):
            yield from walk(term.function, term.options)


def are_compared(parts: Mapping[str, RewardPart]) -> bool:
    """Say whether any part compares the attempts at a task, so that all wait for the last."""
    return any(is_group_function(part.function) for part in parts.values())


def judge_pools(function: str, options: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the pools in which a function, and those it adds up, ask their judges."""
    pools = [judge_pool(*each) for each in walk(function, options)]
    return tuple(dict.fromkeys(filter(None, pools)))


def judge_pool(function: str, options: Mapping[str, Any]) -> str:
    """Return the pool in which a shipped judge asks; "" for any other function."""
    if shipped_name(function) not in _JUDGES:
        return ""
    where = _read_judge(options)
    return f"{where.pool}, {where.concurrency} questions at once in each process"


def judge_engine(function: str, options: Mapping[str, Any]) -> str:
    """Return the name of the engine that a shipped judge asks; "" if it asks none."""
    return _read_judge(options).engine if shipped_name(function) in _JUDGES else ""


def _read_judge(options: Mapping[str, Any]) -> "Judge":
    judge = options.get("judge")
    if not isinstance(judge, Mapping):
        fix = "must be a table that says where to ask: base_url or engine"
        raise ConfigError("reward.options.judge", judge, fix)
    from rollart.rewards.chat import read_judge  # noqa: PLC0415 loads httpx

    described: Mapping[str, Any] = judge
    return read_judge(described)


_OWN_STORES = ("shared_memory", "memory")
"""Stores that keep whole versions instead of buckets, and have no place of their own to name."""
_SCHEMES = ("s3", "gs", "gcs", "abfs", "az", "sftp", "ssh", "hdfs", "http", "https")
"""Schemes of URLs that people give as a store."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What a run is called, how long it is, which files it writes.

    Example:
        >>> RunOptions(name="lake", steps=40, mode="areal").path
        PosixPath('runs/lake')

    """

    name: Annotated[
        str, Matches(r"[A-Za-z0-9][A-Za-z0-9._-]*", "use letters, digits, '.', '_' and '-' only")
    ] = "run"
    """Names the run; "{name}" in the directory stands for it."""
    directory: Annotated[str, NonEmpty("must name a directory")] = "runs/{name}"
    """Where the run's files go."""
    seed: Annotated[int, AtLeast(0)] = 0
    """Seeds tasks, sampling, evaluations, the scheduler's draws, and all of a simulated run.

    Seeded apart: the model (model.seed) and training (training.seed)."""
    steps: Annotated[int, AtLeast(1)] = 100
    """Optimizer steps to make."""
    pipeline: str = "agentic"
    """How the policy learns: "agentic" from rewards of its own attempts, "imitation" from
    demonstrations, where the kind of policy can; your own: "module:function"."""
    mode: ModeName = "rollart"
    """The schedule: how rollout, training and weight updates overlap.

    sync: environments step together, then training; sync_plus: each trajectory by itself, then
    training; one_off: training on the last batch beside rollout; areal: trajectories may span
    updates, bounded at their start; rollart: bounded at every turn, routed by affinity."""
    environments: Annotated[int, AtLeast(1)] = 64
    """Environment slots: episodes that run at once."""
    checkpoint_every: Annotated[int, AtLeast(0)] = 50
    """Steps between checkpoints; 0 writes only the last one."""
    keep_checkpoints: Annotated[int, AtLeast(1)] = 2
    """Newest checkpoints kept."""
    evaluate_every: Annotated[int, AtLeast(0)] = 0
    """Steps between evaluations; 0 evaluates only before and after training.

    Where training continues beside it, weights may change during its episodes."""
    evaluate_episodes: Annotated[int, AtLeast(0)] = 200
    """Episodes of one evaluation, held out where the environment divides its problems; 0: never."""
    evaluate_greedy: bool = False
    """Whether evaluations also play each episode with the likeliest token every time."""
    samples: Annotated[int, AtLeast(0)] = 2
    """Trajectories of each step written as readable text: `samples/step-STEP-TRAJECTORY.txt`."""
    import_paths: tuple[str, ...] = ()
    """Directories searched for your own modules; by default the config file's own directory."""

    def __post_init__(self) -> None:
        check_fields(self, "run")
        check_name("pipeline", self.pipeline, field="run.pipeline")

    @property
    def path(self) -> Path:
        """The run's directory."""
        return Path(self.directory.replace("{name}", self.name))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskOptions:
    """One kind of problem in the mix: an environment and the limits of its episodes.

    Example:
        >>> TaskOptions(env="frozen_lake", options={"size": 4}, max_turns=12)

    """

    env: Annotated[str, NonEmpty('name an environment, or "module:Class"')]
    """frozen_lake, calculator, number_guess, or your own as "module:Class" or "file.py:Class".

    Modules are found next to the config; paths start where the command was started."""
    domain: str = ""
    """The tag requests are routed by; empty takes the task's name."""
    weight: Annotated[float, AtLeast(0)] = 1.0
    """Its share of the mix, relative to the other tasks' weights."""
    max_turns: Annotated[int, AtLeast(1)] = 8
    """Turns after which an episode is cut off."""
    max_tokens: Annotated[int, AtLeast(2)] = 1024
    """Tokens, read and sampled, after which an episode is cut off."""
    player: str = "turns"
    """What plays its attempts: "turns" talks with the model turn by turn; or your own as
    "module:Class" or "path/to/file.py:Class" (docs/extend.md)."""
    parser: Annotated[
        str,
        Matches(r"(.+:\w+)?", 'must read "module:function" or "file.py:function", or be empty'),
    ] = ""
    """"module:function" or "path/to/file.py:function" that turns a completion's text into an
    action; empty strips it."""
    unread: Literal["observe", "end"] = "observe"
    """When the parser raises on what the model wrote: the next observation says so, or the episode
    ends. The environment does not see the turn."""
    unread_reward: Annotated[float, Finite()] = 0.0
    """What such a turn earns, where the environment gives the rewards."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Keyword arguments of the environment's class."""
    rewards: Mapping[str, RewardPart] = field(default_factory=dict[str, RewardPart])
    """Functions that score its attempts: [tasks.NAME.rewards.PART]; none: the environment does."""
    reset_timeout_s: Annotated[float, MoreThan(0)] = 30.0
    """Longest a reset may take before the environment counts as hung."""
    step_timeout_s: Annotated[float, MoreThan(0)] = 30.0
    """Longest a step may take before the environment counts as hung."""
    episode_timeout_s: Annotated[float, MoreThan(0)] = 600.0
    """Longest a whole episode may take; the turn in which that passes is its last."""
    profile: ProfileOptions = field(default_factory=ProfileOptions)
    """How its episodes behave, for the planner."""

    def __post_init__(self) -> None:
        check_fields(self, "tasks")
        check_parts(self.rewards)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Which inference engine samples the tokens, and how many replicas of it.

    Example:
        >>> EngineOptions(name="my_engines:Parrot", options={"token": 5}).label
        'Parrot'

    """

    name: Annotated[str, NonEmpty('name an engine, or "module:Class"')] = "torch"
    """torch, scripted (random tokens), or your own as "module:Class" or "file.py:Class"."""
    replicas: Annotated[int, AtLeast(1)] = 1
    """Engines that serve at once."""
    torch: TorchEngineOptions = field(default_factory=TorchEngineOptions)
    """Options of the engine "torch"."""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Options of any other engine: the fields of its `Options` class."""

    def __post_init__(self) -> None:
        check_fields(self, "engine")
        if self.is_torch and self.options:
            fix = 'the engine "torch" has a section of its own: write its keys under [engine.torch]'
            raise ConfigError("engine.options", dict(self.options), fix)
        check_name("engine", self.name, field="engine.name")

    @property
    def is_torch(self) -> bool:
        """Whether it is the engine whose options are `torch`."""
        return self.name == "torch"

    @property
    def label(self) -> str:
        """What its replicas are called: the name, or the class's if it is your own."""
        return self.name.rpartition(":")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightOptions:
    """How weights travel from the trainer to the engines.

    Example:
        >>> WeightOptions(store="files", place="s3://bucket/run", delta=True)

    """

    store: Annotated[str, NonEmpty("name a store, such as shared_memory")] = "shared_memory"
    """Where versions are kept: shared_memory, memory, files, relay, mooncake, ray, or your own as
    "module:Class"; "memory" puts the trainer into this process, for debugging."""
    place: str = ""
    """For "files" a path or a URL that fsspec opens (s3://, gs://, abfs://, sftp:// …), for "relay"
    and "mooncake" the server's host:port."""
    keep: Annotated[int, AtLeast(0, "0: as many as are needed")] = 0
    """Newest versions kept; 0: as many as an engine may still be loading: staleness.alpha + 2, and
    one for each whole batch of redundancy.extra_groups."""
    bucket_bytes: Annotated[int, MultipleOf(64)] = 64 * 2**20
    """Size of the pieces a version travels in; those of "shared_memory" are not cut."""
    delta: bool = False
    """Send only what changed since the version before, where versions travel in buckets."""
    wait_s: Annotated[float, MoreThan(0)] = 120.0
    """Seconds an engine waits for a version that was published, or for a store that does not
    answer, before it is given up; the last engine's failure ends the run."""

    def __post_init__(self) -> None:
        check_fields(self, "weights")
        scheme, slashes, _ = self.store.partition("://")
        if slashes or scheme in _SCHEMES:
            url = self.store if slashes else f"{scheme}://…"
            fix = f'a URL is a place: set weights.store = "files" and weights.place = "{url}"'
            raise ConfigError("weights.store", self.store, fix)
        check_name("store", self.store, field="weights.store", more=_OWN_STORES)
        in_buckets = self.store not in _OWN_STORES
        if in_buckets and self.store != "ray" and not self.place:
            fix = f'weights.store = "{self.store}" needs a path, a URL or host:port'
            raise ConfigError("weights.place", self.place, fix)
        if not in_buckets and (self.place or self.delta):
            name = "place" if self.place else "delta"
            fix = f'weights.store = "{self.store}" does not use it: leave it out'
            raise ConfigError(f"weights.{name}", getattr(self, name), fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """The cluster of a run; without an address it runs on this machine, without Ray.

    Example:
        >>> RayOptions(address="10.0.0.1:6379", environment_workers=8)

    """

    address: str = ""
    """"local" starts a Ray here, "auto" or host:port joins one; empty: no Ray."""
    environment_workers: Annotated[int, AtLeast(0)] = 0
    """Processes that host environments; 0: one for each CPU node, and at least 2."""
    spare_workers: Annotated[int, AtLeast(0)] = 1
    """More of them beside the driver, which take over while all others are lost; 0: none."""

    def __post_init__(self) -> None:
        check_fields(self, "ray")
