"""Balance: which rank computes which sequences.

A sequence of n tokens costs n + attention·n²: the matrix products of its tokens, and the scores
between them. Sequences are dealt, dearest first, to the rank with the least to do, so no rank has
more than the others by more than one sequence. All ranks deal alike from the same lengths, and
know without asking how many micro-batches each has. Standard library only.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Which part of the sequences a rank computes."""

    rank: int = 0
    ranks: int = 1
    attention: float = 0.0
    """What a pair of positions costs, in units of one token's matrix products."""

    def parts(self, lengths: Mapping[int, int]) -> list[dict[int, int]]:
        """Return every rank's part."""
        return deal(lengths, ranks=self.ranks, attention=self.attention)


def deal(lengths: Mapping[int, int], *, ranks: int, attention: float) -> list[dict[int, int]]:
    """Share sequences out over ranks; each keeps the order of the whole."""
    costs = {index: size + attention * size * size for index, size in lengths.items()}
    owners: dict[int, int] = {}
    loads = [(0.0, rank) for rank in range(ranks)]
    for index in sorted(costs, key=lambda key: (-costs[key], key)):
        load, rank = loads[0]
        heapq.heapreplace(loads, (load + costs[index], rank))
        owners[index] = rank
    return [
        {index: size for index, size in lengths.items() if owners[index] == rank}
        for rank in range(ranks)
    ]
