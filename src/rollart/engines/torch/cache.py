"""Cache: keys and values of every row, one pair of tensors per layer.

A row holds one session's sequence from position 0 on. Positions beyond a sequence's length hold
stale but finite numbers, which masks hide exactly, so rows are never cleared.
"""

import torch


class KVCache:
    """Key and value tensors of shape (rows, key heads, max length, head dimension)."""

    def __init__(
        self,
        shape: tuple[int, int, int, int],
        *,
        layers: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.shape = shape
        self.keys = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(layers)]
        self.values = [torch.zeros(shape, device=device, dtype=dtype) for _ in range(layers)]
        self._flat_keys = [tensor.view(-1, shape[3]) for tensor in self.keys]
        self._flat_values = [tensor.view(-1, shape[3]) for tensor in self.values]
        self._heads = torch.arange(shape[1], device=device) * shape[2]

    def slots(self, rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return where `write` puts the heads of tokens at these rows and positions."""
        _, heads, length, _ = self.shape
        return ((rows * (heads * length) + positions).unsqueeze(1) + self._heads).view(-1)

    def write(
        self, layer: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Store one layer's keys and values (tokens, key heads, head dimension)."""
        dim = self.shape[3]
        self._flat_keys[layer].index_copy_(0, slots, keys.reshape(-1, dim))
        self._flat_values[layer].index_copy_(0, slots, values.reshape(-1, dim))

    def copy_layer(self, layer: int, source: int, target: int, *, length: int) -> None:
        """Copy the first `length` positions of one row to another, in one layer."""
        for tensor in (self.keys[layer], self.values[layer]):
            tensor[target, :, :length].copy_(tensor[source, :, :length])

    def copy(self, source: int, target: int, *, length: int) -> None:
        """Copy the first `length` positions of one row to another, in every layer."""
        for layer in range(len(self.keys)):
            self.copy_layer(layer, source, target, length=length)
