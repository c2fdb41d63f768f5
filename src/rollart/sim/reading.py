"""Reading: the request an engine reads, and what engines have read and sampled so far."""

from dataclasses import dataclass

from rollart.sim.costs import EngineCosts
from rollart.sim.job import Job


@dataclass(slots=True, kw_only=True)
class Usage:
    """What an engine has done so far, brought up to date at its changes."""

    prefill_s: float = 0.0
    """Time prefill alone would have taken."""
    prefill_tokens: float = 0.0
    """Tokens read."""
    reused_tokens: float = 0.0
    """Tokens that were cached when their request was read."""
    sampled_tokens: float = 0.0
    recomputed_tokens: float = 0.0
    """Cached tokens that new weights made worthless under a request."""


class Reading:
    """The request being read."""

    __slots__ = ("alone_s", "job", "left", "seconds", "steps", "tokens")

    def __init__(self, job: Job, *, tokens: float, cached: float, costs: EngineCosts) -> None:
        constants = costs.constants
        self.job = job
        self.tokens = tokens
        self.seconds = costs.prefill_s(tokens, cached=cached)
        """Of prefill alone."""
        self.steps = tokens / constants.chunk_tokens
        self.alone_s = self.seconds + self.steps * constants.step_overhead_s
        """With what its steps cost beside, if nothing is running."""
        self.left = 1.0
        """The share that is not read yet."""
