"""Lock-step: every running episode takes its turn together (the `sync` baseline).

Episodes arrive when they want their next completion and go on only when all that run have
arrived. One that ends or fails leaves, so that it is not waited for.
"""

from rollart.types import TrajectoryId


class LockStep:
    """A barrier over a changing set of episodes."""

    def __init__(self) -> None:
        self._running: set[TrajectoryId] = set()
        self._arrived: set[TrajectoryId] = set()

    def join(self, ids: list[TrajectoryId]) -> None:
        """Count episodes in from now on."""
        self._running.update(ids)

    def arrive(self, episode: TrajectoryId) -> tuple[TrajectoryId, ...]:
        """Note that an episode waits for its turn; return those that may go on, in id order."""
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
