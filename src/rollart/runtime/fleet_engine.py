"""FleetEngine: an engine elsewhere that is made again when it cannot load weights.

To whoever drives it, one that cannot is gone, so that another is made in its place. Where none
stands in for it, what went wrong is told as it is: made again it would meet the same.
"""

from collections.abc import Callable, Mapping

from rollart.errors import UserError
from rollart.ports import Handle
from rollart.runtime.bodies import ActorDiedError, ActorError
from rollart.runtime.remote_engine import RemoteEngine
from rollart.types import EngineId, Version


class FleetEngine(RemoteEngine):
    """Forwards requests to an engine of a fleet."""

    def __init__(
        self,
        handle: Handle,
        *,
        id: EngineId,  # noqa: A002
        lose: Callable[[EngineId, Exception], None],
        is_replaceable: Callable[[EngineId, Exception], bool],
        patience_s: float,
    ) -> None:
        """Take what says whether it may be given up for an error, beside what any engine takes."""
        super().__init__(handle, id=id, caller="controller", lose=lose, patience_s=patience_s)
        self._is_replaceable = is_replaceable

    async def update(self, version: Version) -> Mapping[str, float]:
        """Fetch and load published weights while suspended; return what that took."""
        try:
            return await super().update(version)
        except ActorDiedError:
            raise
        except (UserError, ActorError) as error:
            if not self._is_replaceable(self.id, error):
                raise
            why = str(error).split("\n", 1)[0]
            raise ActorDiedError(f"it cannot load version {version}: {why}") from error
