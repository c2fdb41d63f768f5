"""Min-max scaling to [-1, 1], per dimension, stored with the weights.

A policy computes in normalised units and acts in the environment's. Both need the ranges of the
demonstrations that it was trained on, so they are buffers: they are saved, loaded and published
with the parameters, and a policy without its ranges cannot exist.

A dimension that is constant in the demonstrations says nothing and has no range: it is mapped to
0, whatever its value, and back to its constant. Values outside the range are not clipped.
"""

from collections.abc import Sequence
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

LEAST_RANGE = 1e-4
"""A dimension whose values differ by less is constant: noise would be scaled up to [-1, 1]."""


class Normalizer(nn.Module):
    """Maps each dimension's range in the demonstrations to [-1, 1], and back.

    Example:
        >>> normalizer = Normalizer(2).fit([np.array([[0.0, 5.0], [4.0, 5.0]])])
        >>> normalizer(torch.tensor([[3.0, 5.0]]))
        tensor([[0.5000, 0.0000]])
        >>> normalizer.restore(torch.tensor([[0.5, 0.3]]))
        tensor([[3., 5.]])

    """

    centre: Tensor
    radius: Tensor
    gain: Tensor

    def __init__(self, size: int) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(size))
        self.register_buffer("radius", torch.ones(size))
        # 1 / radius, or 0 where the radius is 0: nothing divides by 0 and no value is infinite.
        self.register_buffer("gain", torch.ones(size))

    def fit(self, arrays: Sequence[NDArray[np.floating]]) -> Self:
        """Take the ranges over the last axis of all arrays."""
        size = self.centre.numel()
        rows = [np.asarray(array, dtype=np.float64).reshape(-1, size) for array in arrays]
        low = np.min([each.min(axis=0) for each in rows], axis=0)
        high = np.max([each.max(axis=0) for each in rows], axis=0)
        is_constant = high - low < LEAST_RANGE
        radius = np.where(is_constant, 0.0, (high - low) / 2)
        gain = np.where(is_constant, 0.0, 1 / np.where(is_constant, 1.0, radius))
        for buffer, values in ((self.centre, (low + high) / 2), (self.radius, radius)):
            buffer.copy_(torch.from_numpy(values))
        self.gain.copy_(torch.from_numpy(gain))
        return self

    def forward(self, values: Tensor) -> Tensor:
        """Return values of the environment in normalised units."""
        return (values - self.centre) * self.gain

    def restore(self, values: Tensor) -> Tensor:
        """Return normalised values in the environment's units."""
        return values * self.radius + self.centre
