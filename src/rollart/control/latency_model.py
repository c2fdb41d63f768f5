"""Latency model: what requests of each domain ask for and how fast each pool answers, as measured.

A domain is known by the lengths its requests sample. A pool has five costs per unit of length: of a
prompt its engine has not seen, of one it saw in the episode's last request and may still hold, of
what is sampled, and of what is sampled and read for every request beside it on the engine. They are
fitted to the requests the pool answered, so the choice between two pools, or between an engine that
holds a prefix and one that is free, compares measured seconds.

Requests count by their relative errors: one that took an hour weighs no more than one of a second.
The latest one or two thousand decide.
"""

from collections import defaultdict
from dataclasses import dataclass

_KNOWN = 8
"""Requests after which a domain, a pool or the two together are known."""
_MANY, _EVERY = 256, 4
"""Requests after which a pool learns from every fourth only: the others add little."""
_FIT_EVERY = 32
"""Requests between two fits of a pool's costs, once there was a first."""
_WEIGHT = 0.01
"""What one request counts in a mean once many are known."""
_KEEP = 0.998
"""What each request leaves of the earlier ones in a pool's costs."""
_SWEEPS = 12
"""Times each cost is improved in a fit; it starts from the last one's."""
_RIDGE = 1e-3
"""Divides the time among the costs where all requests are alike."""
_SHORTEST_S = 1e-6
"""Below this all durations are alike."""
_COSTS = range(5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A request that was completed."""

    domain: str
    pool: str
    new: int
    """Length of the prompt that its engine had not seen."""
    held: int
    """Length of the prompt that its engine saw or sampled in the episode's last request."""
    sampled: int
    took_s: float
    beside: float
    """Other requests its engine had in flight meanwhile."""


@dataclass(slots=True)
class _Mean:
    """A running mean that forgets."""

    value: float = 0.0
    count: int = 0

    def note(self, value: float) -> None:
        self.count += 1
        self.value += max(_WEIGHT, 1 / self.count) * (value - self.value)


class _Speed:
    """What requests cost on the engines of a pool.

    Least squares with no cost below 0: one cost after the other is set to its best value given the
    others, which converges from anywhere.
    """

    def __init__(self) -> None:
        self.count = 0
        self._costs = [0.0 for _ in _COSTS]
        self._products = [[0.0 for _ in _COSTS] for _ in _COSTS]
        self._answers = [0.0 for _ in _COSTS]
        self._fit_at = _KNOWN

    def note(self, request: Answered) -> None:
        """Learn from one request."""
        self.count += 1
        if self.count > _MANY and self.count % _EVERY:
            return
        new, held, sampled = request.new, request.held, request.sampled
        share = 1 / max(_SHORTEST_S, request.took_s)
        crowd = share * request.beside
        prompt = new + held
        features = (new * share, held * share, sampled * share, sampled * crowd, prompt * crowd)
        for row, left in enumerate(features):
            self._answers[row] = _KEEP * self._answers[row] + left
            self._products[row] = [
                _KEEP * product + left * right
                for product, right in zip(self._products[row], features, strict=True)
            ]

    def costs_s(self) -> list[float]:
        """Return the costs that explain the requests best."""
        if self.count >= self._fit_at:
            self._fit_at = self.count + _FIT_EVERY
            for _ in range(_SWEEPS):
                for row in _COSTS:
                    self._improve(row)
        return self._costs

    def _improve(self, row: int) -> None:
        products, costs = self._products[row], self._costs
        if products[row] > 0:
            others = sum(products[each] * costs[each] for each in _COSTS if each != row)
            best = (self._answers[row] - others) / ((1 + _RIDGE) * products[row])
            costs[row] = max(0.0, best)


class Profiler:
    """Learns lengths and costs from finished requests."""

    def __init__(self) -> None:
        self._sampled: defaultdict[str, _Mean] = defaultdict(_Mean)
        self._speeds: defaultdict[str, _Speed] = defaultdict(_Speed)
        self._pairs: dict[tuple[str, str], int] = {}

    def note(self, request: Answered) -> None:
        """Learn from a request that was completed."""
        pair = request.domain, request.pool
        self._pairs[pair] = self._pairs.get(pair, 0) + 1
        self._sampled[request.domain].note(request.sampled)
        self._speeds[request.pool].note(request)

    def knows(self, domain: str, pool: str) -> bool:
        """Say whether enough requests of a domain were completed on a pool to judge it."""
        return self._pairs.get((domain, pool), 0) >= _KNOWN

    def delay_s(self, domain: str, pool: str, *, new: int, held: int, beside: int) -> float:
        """Return how much waiting one more request of a domain means on an engine.

        The request waits for its prompt and its own output, which are slower the more requests are
        beside it. Each of those waits too, while its prompt is read and, at every step, for its
        place in the batch: all that waiting together is what the choice costs.
        """
        new_s, held_s, sampled_s, sampled_beside_s, prompt_beside_s = self._speeds[pool].costs_s()
        sampled = self._sampled[domain].value
        read_s = new * new_s + held * held_s
        slowed_s = sampled * sampled_beside_s
        crowded_s = slowed_s + (new + held) * prompt_beside_s
        return read_s + sampled * sampled_s + beside * (crowded_s + read_s + slowed_s)
