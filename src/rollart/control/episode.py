"""Episodes: when one ends, and when those of a lock-step run take their next turn.

The live player and the simulator share both classes, so an episode ends at the same place and a
lock-step run proceeds in the same order in either. `Turns` knows how many tokens there are and
nothing else of them.
"""

from rollart.types import EpisodeLimits, StopReason, TrajectoryId


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


class LockStep:
    """A barrier over a changing set of episodes."""

    def __init__(self) -> None:
        self._running: set[TrajectoryId] = set()
        self._arrived: set[TrajectoryId] = set()

    def join(self, ids: list[TrajectoryId]) -> None:
        """Count episodes in from now on."""
        self._running.update(ids)

    def arrive(self, episode: TrajectoryId) -> tuple[TrajectoryId, ...]:
        """Note that an episode waits for its turn; return those that may continue, in id order."""
        self._arrived.add(episode)
        return self._release()

    def leave(self, episode: TrajectoryId) -> tuple[TrajectoryId, ...]:
        """Count an episode out; return those that no longer wait for it."""
        self._running.discard(episode)
        self._arrived.discard(episode)
        return self._release()

    def _release(self) -> tuple[TrajectoryId, ...]:
        if not self._arrived or self._arrived != self._running:
            return ()
        released = tuple(sorted(self._arrived))
        self._arrived.clear()
        return released
