"""Pools and profiles: the hardware a run has, and what is known of its tasks before it runs.

Both are what the planner reads. A run on this machine reads the pools too: those of CPUs become
engines.
"""

from dataclasses import dataclass
from typing import Literal

from rollart.errors import ConfigError
from rollart.sim.hardware import gpu_named, link_named


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolOptions:
    """GPUs of one kind and what they are for."""

    gpu: str
    """The hardware class, such as "H800"; "CPU" is this machine's."""
    count: int
    """How many there are; of CPUs, how many engines."""
    role: Literal["any", "train", "rollout"] = "any"
    """What they do; "any" is up to the planner."""
    tp: int = 0
    """GPUs of one engine; 0 is up to the planner."""
    prefill: int = 0
    """Prefill engines of one unit; 0: engines read and sample, unless the planner finds better."""
    decode: int = 0
    """Decode engines of one unit; given together with prefill."""
    price: float = 0.0
    """Price of one GPU hour in any currency; 0 takes the table's, relative to an H20."""
    link: str = ""
    """The link new weights cross from the trainer, such as "rdma_400g"; empty: "tcp_200g"."""

    def __post_init__(self) -> None:
        gpu = gpu_named(self.gpu, field="pools.gpu")
        if self.link:
            link_named(self.link, field="pools.link")
        if self.count < 1:
            raise ConfigError("pools.count", self.count, "must be at least 1")
        if not 0 <= self.tp <= gpu.gpus_per_node:
            fix = f"must be from 0 (up to the planner) to {gpu.gpus_per_node}, a node's GPUs"
            raise ConfigError("pools.tp", self.tp, fix)
        for name in ("prefill", "decode"):
            if getattr(self, name) < 0:
                raise ConfigError(f"pools.{name}", getattr(self, name), "must be at least 0")
        if (self.prefill == 0) != (self.decode == 0):
            fix = "give both prefill and decode, or neither"
            raise ConfigError("pools.prefill", self.prefill, fix)
        if not self.price >= 0:
            raise ConfigError("pools.price", self.price, "must be at least 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileOptions:
    """How episodes of a task behave, as far as it is known; read by the planner alone."""

    like: str = ""
    """A shipped profile to start from, such as "swe"; what is given below replaces its figures."""
    turns: tuple[int, int] | None = None
    """Fewest and most turns of an episode."""
    opening_tokens: int | None = None
    """Tokens of the first prompt."""
    reads: int | None = None
    """Mean tokens of an observation."""
    samples: int | None = None
    """Mean tokens of a completion."""
    samples_spread: float | None = None
    """How completions differ: standard deviation of the logarithm."""
    reset_s: float | None = None
    """Mean time of a reset."""
    step_s: float | None = None
    """Mean time of a step."""
    score_s: float | None = None
    """Mean time of the reward function, if there is one."""
    failure_rate: float | None = None
    """Share of attempts whose environment fails at its reset."""

    def __post_init__(self) -> None:
        if self.turns is not None and not 1 <= self.turns[0] <= self.turns[1]:
            fix = "must be two numbers, 1 <= fewest <= most"
            raise ConfigError("profile.turns", self.turns, fix)
        for name in ("opening_tokens", "reads", "samples"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"profile.{name}", value, "must be at least 1")
        for name in ("samples_spread", "reset_s", "step_s", "score_s"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ConfigError(f"profile.{name}", value, "must be at least 0")
        if self.failure_rate is not None and not 0 <= self.failure_rate < 1:
            fix = "must be from 0 to below 1"
            raise ConfigError("profile.failure_rate", self.failure_rate, fix)
