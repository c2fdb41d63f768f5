"""Rules: every decision's parameters in one value, as the config gives them."""

from dataclasses import dataclass, field

from rollart.control.batching import Batching
from rollart.control.dispatch import Dispatch
from rollart.control.filters import Filter
from rollart.control.lending import Lending
from rollart.control.modes import ROLLART, Mode
from rollart.control.redundancy import Redundancy
from rollart.control.retry import Retry
from rollart.control.staleness import Staleness
from rollart.control.syncing import Syncing


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Everything a scheduler decides by."""

    steps: int
    """Optimizer steps of the whole run."""
    seed: int = 0
    mode: Mode = ROLLART
    batching: Batching = field(default_factory=Batching)
    staleness: Staleness = field(default_factory=Staleness)
    redundancy: Redundancy = field(default_factory=Redundancy)
    retry: Retry = field(default_factory=Retry)
    filter: Filter = field(default_factory=Filter)
    syncing: Syncing = field(default_factory=Syncing)
    dispatch: Dispatch = field(default_factory=Dispatch)
    lending: Lending = field(default_factory=Lending)
