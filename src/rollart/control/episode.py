"""Turns: when an attempt ends, counted in turns and in what was read and sampled.

The live player and the simulator count by this class, so both end an episode at the same place.
It knows how many tokens there are and nothing else of them.
"""

from rollart.types import EpisodeLimits, StopReason


class Turns:
    """How far an attempt has come, and what will end it."""

    __slots__ = ("_limits", "count", "tokens")

    def __init__(self, limits: EpisodeLimits) -> None:
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
