"""Threads: all of an engine's for operations that take long, one thread for the rest.

To wake a sleeping thread can take a quarter of a millisecond, and a step of a small model has a
hundred operations that take less. The sizes of an operation alone decide, so the same requests
are computed in the same way.
"""

import torch

_LAYER_PRODUCTS = 1 << 26
"""Multiplications of a layer's linear maps from which threads share them: two milliseconds."""
_ATTENDED_NUMBERS = 1 << 19
"""Keys a token of each row attends to from which threads share the rows: half a millisecond."""
_TOKENS_A_READ = 8
"""Tokens of a row that attend in the time in which its keys and values are read."""


class Threads:
    """Chooses how many threads of this process the next operations use."""

    def __init__(self, count: int) -> None:
        self._count = count

    def share_all(self) -> None:
        """Leave all threads to what follows."""
        self._use(shared=True)

    def share_linear(self, *, tokens: int, layer_size: int) -> None:
        """Choose for the linear maps of a layer of so many weights."""
        self._use(shared=tokens * layer_size >= _LAYER_PRODUCTS)

    def share_attention(self, *, rows: int, row_size: int, tokens: int) -> None:
        """Choose for rows of keys of such a size, each with as many tokens."""
        reads = rows * row_size * (1 + tokens // _TOKENS_A_READ)
        self._use(shared=reads >= _ATTENDED_NUMBERS)

    def _use(self, *, shared: bool) -> None:
        if self._count > 1:
            torch.set_num_threads(self._count if shared else 1)
