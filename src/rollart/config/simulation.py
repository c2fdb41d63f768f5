"""What the simulator and the planner take for granted: episodes, failures, scoring, costs.

A live run reads none of it. The classes are here and not in `sim/` so that a config is read and
checked without loading the simulator; `sim/` imports them from here.
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from rollart.constraints import AtLeast, Between, Fixed, MoreThan, check_fields
from rollart.errors import ConfigError

_USUAL = Fixed("usual for serving engines")
LatencyKind = Literal["constant", "normal", "lognormal"]
"""How times are distributed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """How episodes of a task behave, as far as it is known; read by simulator and planner.

    Example:
        >>> ProfileOptions(like="swe", step_s=4.0, failure_rate=0.02)

    """

    like: str = ""
    """A shipped profile to start from, such as "swe"; what is given below replaces its figures."""
    turns: tuple[int, int] | None = None
    """Fewest and most turns of an episode."""
    opening_tokens: Annotated[int | None, AtLeast(1)] = None
    """Tokens of the first prompt."""
    observation_tokens: Annotated[int | None, AtLeast(1)] = None
    """Mean tokens of an observation."""
    completion_tokens: Annotated[int | None, AtLeast(1)] = None
    """Mean tokens of a completion."""
    completion_spread: Annotated[float | None, AtLeast(0)] = None
    """How completions differ: standard deviation of the logarithm."""
    reset_s: Annotated[float | None, AtLeast(0)] = None
    """Mean time of a reset, its tail apart; lognormal unless `like` knows better."""
    reset_spread: Annotated[float | None, AtLeast(0)] = None
    """How resets differ: standard deviation of the logarithm, or if normal over the mean."""
    reset_tail: tuple[float, float] | None = None
    """Share of resets that take longer, and how many times as long."""
    step_s: Annotated[float | None, AtLeast(0)] = None
    """Mean time of a step, its tail apart."""
    step_spread: Annotated[float | None, AtLeast(0)] = None
    """How steps differ, as for resets."""
    step_tail: tuple[float, float] | None = None
    """Share of steps that take longer, and how many times as long."""
    score_s: Annotated[float | None, AtLeast(0)] = None
    """Mean time of the reward function, if there is one."""
    failure_rate: Annotated[float | None, Between(0, 1, without="high")] = None
    """Share of attempts whose environment fails at its reset."""
    failure_after_s: Annotated[float | None, AtLeast(0)] = None
    """Mean time until such a reset is given up; none: as long as any other."""

    def __post_init__(self) -> None:
        check_fields(self, "profile")
        if self.turns is not None and not 1 <= self.turns[0] <= self.turns[1]:
            fix = "must be two numbers, 1 <= fewest <= most"
            raise ConfigError("profile.turns", self.turns, fix)
        for name in ("reset_tail", "step_tail"):
            tail = getattr(self, name)
            if tail is not None and not (0 <= tail[0] <= 1 <= tail[1]):
                fix = "must be two numbers: a share from 0 to 1, and how many times as long, from 1"
                raise ConfigError(f"profile.{name}", tail, fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringOptions:
    """Where the simulator scores trajectories.

    Example:
        >>> ScoringOptions(kind="dedicated", max_instances=64)

    """

    kind: Literal["dedicated", "elastic"] = "elastic"
    """Workers that are always there, or instances that come and go."""
    max_instances: Annotated[int, AtLeast(1)] = 1000
    """Workers, or the most instances there may be."""
    cold_start_s: Annotated[float, AtLeast(0)] = 2.0
    """Time an elastic instance needs before its first score."""
    idle_s: Annotated[float, AtLeast(0)] = 30.0
    """Time an elastic instance stays when idle."""

    def __post_init__(self) -> None:
        check_fields(self, "simulation.rewards")


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What the cost model cannot derive from the hardware tables.

    Example:
        >>> Constants(train_utilisation=0.3, push_gb_s=2.0)

    """

    prefill_utilisation: Annotated[float, Between(0, 1, without="low")] = 0.6
    """Share of the dense arithmetic peak that prefill reaches."""
    decode_utilisation: Annotated[float, Between(0, 1, without="low")] = 0.7
    """Share of the memory bandwidth that decoding reaches."""
    step_overhead_s: Annotated[float, AtLeast(0), _USUAL] = 0.004
    """What every engine step costs beside arithmetic and memory: scheduling, sampling."""
    chunk_tokens: Annotated[int, MoreThan(0), _USUAL] = 2048
    """Prompt tokens of one prefill step; running sequences decode one token beside each."""
    memory_share: Annotated[float, Between(0, 1, without="low"), _USUAL] = 0.9
    """Share of a GPU's memory that weights and cache may use."""
    train_utilisation: Annotated[float, Between(0, 1, without="low")] = 0.15
    """Share of the dense arithmetic peak an optimizer step reaches, all of its passes counted."""
    train_fixed_s: Annotated[float, AtLeast(0)] = 80.0
    """What every optimizer step costs beside that: loading the batch, gathering, the optimizer."""
    push_gb_s: Annotated[float, AtLeast(0)] = 0.0
    """Most a store takes in from the trainer per second; 0: as much as the link brings."""
    install_gb_s: Annotated[float, MoreThan(0), Fixed("fitted to the paper's transfers")] = 7.2
    """Speed at which a host loads a version it has into its engines, which stand still."""
    bucket_gb: Annotated[float, MoreThan(0), Fixed("usual for transfers in buckets")] = 1.0
    """Weights that travel as one piece: a bucket is pulled while the next is pushed."""
    rpc_s: Annotated[float, AtLeast(0)] = 0.02
    """Mean of a call to an environment on another machine."""
    switch_s: Annotated[float, AtLeast(0), Fixed("little beside moving bytes")] = 5.0
    """What lending or recalling training hardware costs beside moving bytes."""
    state_bytes: Annotated[float, AtLeast(0), Fixed("AdamW in mixed precision")] = 16.0
    """Bytes that training keeps per parameter: weights, gradients and the optimizer's state."""

    def __post_init__(self) -> None:
        check_fields(self, "simulation.constants")


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulationOptions:
    """What a simulated cluster is like beyond its hardware.

    Example:
        >>> SimulationOptions(engine_mtbf_s=3600.0, rewards=ScoringOptions(max_instances=64))

    """

    engine_mtbf_s: Annotated[float, AtLeast(0)] = 0.0
    """Mean time an engine serves until it dies; 0: it never does."""
    engine_repair_s: Annotated[float, AtLeast(0)] = 60.0
    """Time until a dead engine serves again."""
    rewards: ScoringOptions = field(default_factory=ScoringOptions)
    """Where scoring runs."""
    constants: Constants = field(default_factory=Constants)
    """What the cost model cannot derive from the hardware."""

    def __post_init__(self) -> None:
        check_fields(self, "simulation")
