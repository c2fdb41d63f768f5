"""Profiling: what requests of each domain ask for and how fast each pool answers, as measured.

A domain has a shape: the prompt tokens its engine had not seen, the tokens sampled, and the time
its episodes spend between requests. A pool has three costs: the seconds of a new prompt token, of a
sampled token, and of a sampled token for every request beside it on the engine. Shapes and costs
are learned apart, so a domain's work on a pool it never used can be told as soon as both are known;
how well, depends on how different the requests were that the costs were learned from.

Every mean forgets: the latest few hundred requests decide.
"""

from collections import defaultdict
from dataclasses import dataclass, field

_KNOWN = 8
"""Requests after which a domain or a pool is known, and between two fits of a pool's costs."""
_WEIGHT = 0.01
"""What one request counts in a mean once many are known."""
_KEEP = 0.998
"""What each request leaves of the earlier ones in a pool's costs."""
_SWEEPS = 12
"""Times each cost is improved in a fit; it starts from the last one's."""
_RIDGE = 1e-3
"""Tells costs apart where requests are all alike: each then explains a part."""
_LIGHTEST, _HEAVIEST = 0.1, 10.0
"""Bounds on how many usual episodes one episode counts as."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A request that was completed."""

    domain: str
    pool: str
    new_tokens: int
    """Prompt tokens its engine had not seen."""
    sampled_tokens: int
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


@dataclass(slots=True)
class _Times:
    """How long requests take and how long their episodes then do without."""

    took_s: _Mean = field(default_factory=_Mean)
    idle_s: _Mean = field(default_factory=_Mean)

    @property
    def busy(self) -> float:
        """The part of its life an episode has a request in flight."""
        total_s = self.took_s.value + self.idle_s.value
        return self.took_s.value / total_s if total_s > 0 else 1.0


@dataclass(slots=True)
class _Shape:
    """What the requests of a domain ask for."""

    new_tokens: _Mean = field(default_factory=_Mean)
    sampled_tokens: _Mean = field(default_factory=_Mean)
    times: _Times = field(default_factory=_Times)


class _Speed:
    """What requests cost on the engines of a pool.

    Least squares of the time a request takes on its new tokens, its sampled tokens, and its sampled
    tokens times the requests beside it, with no cost below 0: one cost after the other is set to
    its best value given the others, which converges from anywhere.
    """

    def __init__(self) -> None:
        self.count = 0
        self.times = _Times()
        self._costs = [0.0, 0.0, 0.0]
        self._products = [[0.0, 0.0, 0.0] for _ in range(3)]
        self._answers = [0.0, 0.0, 0.0]
        self._fitted = 0

    def note(self, request: Answered, took_s: float) -> None:
        """Learn from one request."""
        self.count += 1
        self.times.took_s.note(took_s)
        sampled = request.sampled_tokens
        features = (request.new_tokens, sampled, sampled * request.beside)
        for row, left in enumerate(features):
            self._answers[row] = _KEEP * self._answers[row] + left * took_s
            products = self._products[row]
            for column, right in enumerate(features):
                products[column] = _KEEP * products[column] + left * right

    def costs_s(self) -> list[float]:
        """Return the costs that explain the requests best."""
        if self.count - self._fitted >= _KNOWN:
            self._fitted = self.count
            for _ in range(_SWEEPS):
                for row in range(3):
                    self._improve(row)
        return self._costs

    def _improve(self, row: int) -> None:
        products, costs = self._products[row], self._costs
        if products[row] > 0:
            others = sum(products[each] * costs[each] for each in range(3) if each != row)
            best = (self._answers[row] - others) / ((1 + _RIDGE) * products[row])
            costs[row] = max(0.0, best)


class Profiler:
    """Learns shapes and costs from finished requests."""

    def __init__(self) -> None:
        self._shapes: defaultdict[str, _Shape] = defaultdict(_Shape)
        self._speeds: defaultdict[str, _Speed] = defaultdict(_Speed)
        self._pairs: dict[tuple[str, str], int] = {}

    def note(self, request: Answered) -> None:
        """Learn from a request that was completed."""
        took_s = max(0.0, request.took_s)
        pair = request.domain, request.pool
        self._pairs[pair] = self._pairs.get(pair, 0) + 1
        shape = self._shapes[request.domain]
        shape.new_tokens.note(request.new_tokens)
        shape.sampled_tokens.note(request.sampled_tokens)
        shape.times.took_s.note(took_s)
        self._speeds[request.pool].note(request, took_s)

    def note_idle(self, domain: str, pool: str, idle_s: float) -> None:
        """Learn how long an episode did without a request after one was completed."""
        for times in (self._shapes[domain].times, self._speeds[pool].times):
            times.idle_s.note(max(0.0, idle_s))

    def knows_domain(self, domain: str) -> bool:
        """Say whether enough requests of a domain were completed to judge it."""
        return self._shapes[domain].new_tokens.count >= _KNOWN

    def knows_pool(self, pool: str) -> bool:
        """Say whether enough requests were completed on a pool to judge it."""
        return self._speeds[pool].count >= _KNOWN

    def knows_pair(self, domain: str, pool: str) -> bool:
        """Say whether enough requests of a domain were completed on a pool."""
        return self._pairs.get((domain, pool), 0) >= _KNOWN

    def weight(self, domain: str, pool: str) -> float:
        """Return how many of a pool's usual episodes an episode of a domain counts as.

        What counts is how much of its life it has a request in flight.
        """
        usual = self._speeds[pool].times.busy
        if usual <= 0 or not self.knows_domain(domain) or not self.knows_pool(pool):
            return 1.0
        return min(_HEAVIEST, max(_LIGHTEST, self._shapes[domain].times.busy / usual))

    def delay_s(self, domain: str, pool: str, load: float) -> float:
        """Return how much waiting one more request of a domain means on an engine.

        `load` counts usual episodes. The request waits for its own tokens, which go slower the more
        requests are beside it. Each of those waits too, while its prompt is read and, at every
        token, for its place in the batch: all that waiting together is what the choice costs.
        """
        shape, speed = self._shapes[domain], self._speeds[pool]
        new_s, sampled_s, beside_s = speed.costs_s()
        beside = load * speed.times.busy
        read_s = shape.new_tokens.value * new_s
        slowed_s = shape.sampled_tokens.value * beside_s
        own_s = read_s + shape.sampled_tokens.value * sampled_s + beside * slowed_s
        return own_s + beside * (read_s + slowed_s)
