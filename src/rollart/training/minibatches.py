"""Minibatches: which sequences can move the weights, and which update each belongs to.

A function of the batch, the options and the version alone, so every rank and every resumed run
deals alike. numpy only.
"""

import numpy as np
from numpy.typing import NDArray

from rollart.seeds import derive_seed
from rollart.training.batch import Batch
from rollart.training.options import TrainingOptions


def find_moving(
    batch: Batch, advantages: NDArray[np.float64], options: TrainingOptions
) -> NDArray[np.bool_]:
    """Say which sequences can move the weights."""
    has_tokens = batch.sampled_counts > 0
    if options.kl_coefficient > 0 or options.entropy_coefficient > 0:
        return has_tokens
    has_signal = has_tokens & (advantages != 0)
    return has_signal if options.skip_zero_advantage or not has_signal.any() else has_tokens


def deal_minibatches(
    moving: NDArray[np.bool_], options: TrainingOptions, *, version: int
) -> list[NDArray[np.int64]]:
    """Deal all sequences to minibatches, differently each epoch; leave out idle minibatches."""
    shares: list[NDArray[np.int64]] = []
    for epoch in range(options.epochs):
        seed = derive_seed(options.seed, version, epoch)
        order = np.random.default_rng(seed).permutation(len(moving))
        split = np.array_split(order, options.minibatches)
        shares += [np.sort(share) for share in split if moving[share].any()]
    return shares
