"""Turns: when an attempt ends, counted in turns and tokens.

The part of an episode that needs no tokens, only how many there are; the simulator runs thousands
of attempts on it alone.
"""

from dataclasses import dataclass

from rollart.errors import ConfigError
from rollart.types import StopReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Where an episode is cut short."""

    max_turns: int = 16
    """Most completions in one episode."""
    max_tokens: int = 512
    """Most tokens in one episode, prompts and completions together."""

    def __post_init__(self) -> None:
        if self.max_turns < 1:
            raise ConfigError("tasks.max_turns", self.max_turns, "must be at least 1")
        if self.max_tokens < 2:
            raise ConfigError("tasks.max_tokens", self.max_tokens, "must be at least 2")


class Turns:
    """How far an attempt has come, and what will end it."""

    __slots__ = ("_limits", "count", "tokens")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.count = 0
        """Turns taken."""
        self.tokens = 0
        """Tokens read and sampled."""

    @property
    def room(self) -> int:
        """How many more tokens the limits allow."""
        return self._limits.max_tokens - self.tokens

    def show(self, tokens: int) -> StopReason | None:
        """Count what the policy reads; say whether that leaves it nothing to sample."""
        self.tokens += tokens
        return "max_tokens" if self.room <= 0 else None

    def sample(self, tokens: int) -> None:
        """Count what the policy sampled."""
        self.tokens += tokens

    def take(self, *, terminated: bool, truncated: bool) -> StopReason | None:
        """Count a turn; say whether it was the last."""
        self.count += 1
        if terminated:
            return "terminated"
        if truncated:
            return "truncated"
        return "max_turns" if self.count >= self._limits.max_turns else None
