"""Place: where one environment worker sits, as its driver sees it."""

from dataclasses import dataclass, field

from rollart.ports import Handle
from rollart.runtime.env_server import Order, Report
from rollart.runtime.exchange import Line
from rollart.types import TrajectoryId


@dataclass(slots=True, kw_only=True, eq=False)
class Place:
    """Where one worker sits; its successor sits there too, or in the place that follows it."""

    number: int
    is_spare: bool
    made: int = 0
    """Workers there have been, in the places it follows too."""
    name: str = ""
    """What the worker there is called, and no other ever is."""
    handle: Handle | None = None
    line: Line[Order, Report] | None = None
    running: set[TrajectoryId] = field(default_factory=set[TrajectoryId])
    is_left: bool = False
    """Whether another place follows it, or is about to."""

    @property
    def title(self) -> str:
        """What it is called in messages."""
        return f"{'spare ' if self.is_spare else ''}environment worker {self.number}"

    def rename(self) -> None:
        """Name the next worker there."""
        self.name = f"{'spare-' if self.is_spare else ''}environments-{self.number}"
        self.name += f".{self.made}" if self.made else ""
        self.made += 1
