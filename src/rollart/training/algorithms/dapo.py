"""DAPO: GRPO with a wider upper clip, token mean and a penalty on overlong attempts.

Yu et al. 2025. Their fourth part, new groups for those without signal, is not offered.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from rollart.constraints import AtLeast
from rollart.errors import ConfigError
from rollart.training.algorithms.grpo import Grpo
from rollart.types.tokens import Floats, Indices, TokenBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Dapo(Grpo):
    """DAPO: A = (R' - mean) / (std + 1e-6) over the group, R' = R + penalty of the length.

    With L = overlong_limit and b = overlong_buffer, the penalty of n sampled tokens is 0 up to
    L - b, falls linearly to -1 at L and stays there. The clip of 0.2 and 0.28 and the token mean
    are the defaults. Needs groups of at least 2.

    Example:
        L = 20, b = 4: 17 tokens cost 0.25, 20 and more cost 1. The paper: 20480 and 4096.

        >>> Dapo(overlong_limit=20480, overlong_buffer=4096)

    """

    overlong_limit: Annotated[int, AtLeast(0, "0: no penalty")] = 0
    """Sampled tokens of an attempt at which the penalty is full; 0: no penalty."""
    overlong_buffer: Annotated[int, AtLeast(0)] = 0
    """Tokens before the limit over which the penalty rises; 0: at once, beyond the limit."""

    def __post_init__(self) -> None:
        Grpo.__post_init__(self)
        if self.overlong_buffer > self.overlong_limit:
            fix = f"must be at most algorithm.overlong_limit ({self.overlong_limit})"
            raise ConfigError("algorithm.overlong_buffer", self.overlong_buffer, fix)

    def estimate(self, batch: TokenBatch) -> Floats:
        """Return each trajectory's standardised reward, penalty included, at all its tokens."""
        penalties = overlong_penalties(
            batch.sampled_counts, limit=self.overlong_limit, buffer=self.overlong_buffer
        )
        return Grpo.estimate(self, replace(batch, rewards=batch.rewards + penalties))


def overlong_penalties(lengths: Indices, *, limit: int, buffer: int) -> Floats:
    """Return what is added to the reward of an attempt of so many sampled tokens.

    Example:
        >>> overlong_penalties(np.array([16, 17, 20, 21]), limit=20, buffer=4)
        array([ 0.  , -0.25, -1.  , -1.  ])

    """
    if not limit:
        return np.zeros(len(lengths))
    over = np.asarray(lengths - (limit - buffer), np.float64)
    return -np.clip(over / buffer if buffer else over, 0.0, 1.0)
