"""Job: one turn to be completed, as engines of the simulator take it in."""

from collections.abc import Callable
from dataclasses import dataclass

from rollart.types import EngineId, TrajectoryId, Version


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """One turn to be completed."""

    session: TrajectoryId
    context: float
    """Tokens to be read, the whole history."""
    response: float
    """Tokens to be sampled."""
    on_done: Callable[["Job"], None]
    """What its engine does when it is completed."""
    then: Callable[["Job"], None] | None = None
    """What a fleet does after that."""
    born: Version | None = None
    """The version that sampled the first token."""
    sampled: float = 0.0
    """Tokens sampled before the engine last took it up."""
    began: float = 0.0
    """The engine's clock when it began to sample."""
    listed: int = 0
    """Which of the engine's listed ends is its own."""
    seconds: float = 0.0
    """How long it takes on an engine that is timed and not modelled."""
    received: float = 0.0
    """Tokens of the context whose keys and values come with it."""
    cached: float = 0.0
    """Tokens of the context that need not be read again."""
    state: str = "new"
    """Where in its engine it is."""
    domain: str = ""
    """The domain of its task."""
    home: EngineId | None = None
    """The engine a fleet has given it to, if it has."""
    brought: float = 0.0
    """Tokens sampled before it came there."""

    @property
    def tokens(self) -> float:
        """Tokens it will have when done."""
        return self.context + self.response
