"""What a call used and cost: kept while it is on its way, told as a line when it is over."""

from dataclasses import dataclass

from rollart.rewards.serverless.options import Reliability
from rollart.types import ScoreCall


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLine:
    """What one call took and cost."""

    key: str
    function: str
    deliveries: int
    hedges: int
    latency_s: float
    """From the call to its answer, waiting and retries included."""
    billed_s: float
    """Seconds of all its deliveries."""
    cost: float
    failure: str
    """Why there is no score; "" if there is one."""


@dataclass(slots=True)
class Account:
    """What a call has used so far."""

    deliveries: int = 0
    hedges: int = 0
    billed_s: float = 0.0
    last: str = ""
    """Why its last delivery failed, or what it waits for."""

    def close(
        self, call: ScoreCall, *, latency_s: float, failure: str, prices: Reliability
    ) -> CallLine:
        """Return the line of a call that is over."""
        cost = prices.price_per_call * self.deliveries + prices.price_per_s * self.billed_s
        return CallLine(
            key=call.key,
            function=call.function,
            deliveries=self.deliveries,
            hedges=self.hedges,
            latency_s=latency_s,
            billed_s=self.billed_s,
            cost=cost,
            failure=failure,
        )
