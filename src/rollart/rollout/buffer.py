"""Buffer: finished trajectories, with their tokens, until they are trained on or dropped.

Tokens flow from environment managers through here to the trainer and never through the
controller. The scheduler has checked the staleness bound of what is taken; `take` asserts it.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from rollart.errors import InvariantError
from rollart.types import Trajectory, TrajectoryId, Version


class Buffer:
    """Trajectories by id; each is put once and leaves once.

    Example: `buffer.put(trajectory); [[first, second]] = buffer.take([[7, 8]])`
    """

    def __init__(self, is_fresh: Callable[[Version], bool]) -> None:
        self._is_fresh = is_fresh
        self._held: dict[TrajectoryId, Trajectory] = {}

    def put(self, trajectory: Trajectory) -> None:
        """Hold a finished trajectory."""
        if trajectory.id in self._held:
            raise InvariantError(f"trajectory {trajectory.id} was put twice")
        self._held[trajectory.id] = trajectory

    def get(self, trajectory: TrajectoryId) -> Trajectory:
        """Return a trajectory and keep it."""
        return self._held[trajectory]

    def score(self, trajectory: TrajectoryId, reward: float) -> None:
        """Give a trajectory that is still held the reward it is trained on."""
        if trajectory in self._held:
            self._held[trajectory] = replace(self._held[trajectory], reward=reward)

    def take(self, groups: Iterable[Iterable[TrajectoryId]]) -> list[list[Trajectory]]:
        """Remove and return groups that will be trained on."""
        taken = [[self._held.pop(id_) for id_ in group] for group in groups]
        for trajectory in (member for group in taken for member in group):
            if not self._is_fresh(trajectory.born):
                raise InvariantError(f"trajectory {trajectory.id} is too old to train on")
        return taken

    def drop(self, ids: Iterable[TrajectoryId]) -> None:
        """Remove trajectories that will not be trained on."""
        for id_ in ids:
            del self._held[id_]

    def __len__(self) -> int:
        return len(self._held)
