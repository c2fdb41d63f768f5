"""Cache: keys and values of every row, one pair of tensors per layer.

A row holds one session's sequence from position 0 on. Positions beyond a sequence's length hold
stale but finite numbers, which masks hide exactly, so rows are never cleared. On a CPU a page of
memory is used only once a token has been written to it.
"""

import numpy
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
        self.position_bytes = 2 * shape[1] * shape[3] * dtype.itemsize
        """Keys and values of one position in one layer."""
        self.keys = [_zeros(shape, device=device, dtype=dtype) for _ in range(layers)]
        self.values = [_zeros(shape, device=device, dtype=dtype) for _ in range(layers)]
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


def _zeros(shape: tuple[int, ...], *, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return zeros; on a CPU through numpy, which takes pages from the system untouched."""
    if device.type != "cpu":
        return torch.zeros(shape, device=device, dtype=dtype)
    width = {2: numpy.int16, 4: numpy.int32}[dtype.itemsize]
    return torch.from_numpy(numpy.zeros(shape, dtype=width)).view(dtype)
