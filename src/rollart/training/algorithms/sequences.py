"""Sums over sequences, tokens and turns that several algorithms take.

Of a micro-batch, torch's: a trajectory is never cut, so a sequence's sum is its own whatever is
computed beside it. Of a batch, numpy's: whitening, returns of turns, and the batch without some of
its members. Observations between turns are in no sum: only sampled tokens count.

Baselines are per trajectory. A group with nothing to compare (one member, or equal rewards) gets
exactly 0, so that rounding never makes a signal of it.
"""

from dataclasses import replace
from typing import Literal

import numpy as np

from rollart.types.tokens import Flags, Floats, Indices, Tensor, TokenBatch

Norm = Literal["std", "mean", "none"]
_LEAST_VARIANCE = 1e-8
_EPS = 1e-6


def sequence_sums(values: Tensor, owners: Tensor) -> Tensor:
    """Return at each token the sum of `values` over its sequence.

    Example:
        >>> sequence_sums(torch.tensor([1.0, 2.0, 5.0]), torch.tensor([0, 0, 3]))
        tensor([3., 3., 5.])

    """
    sums = values.new_zeros(int(owners.max()) + 1).index_add(0, owners, values)
    return sums[owners]


def sequence_means(values: Tensor, owners: Tensor) -> Tensor:
    """Return at each token the mean of `values` over its sequence.

    Example:
        >>> sequence_means(torch.tensor([1.0, 2.0, 5.0]), torch.tensor([0, 0, 3]))
        tensor([1.5000, 1.5000, 5.0000])

    """
    return sequence_sums(values, owners) / owners.bincount()[owners]


def whiten(values: Floats, counted: Flags) -> Floats:
    """Return values less their mean, in units of their deviation, over the counted ones.

    Where these are all equal, every value is exactly 0: rounding never makes a signal.

    Example:
        >>> whiten(np.array([1.0, 3.0, 9.0]), np.array([True, True, False]))
        array([-1.,  1.,  7.])

    """
    some = values[counted]
    if not len(some) or some.min() == some.max():
        return np.zeros(len(values))
    return (values - some.mean()) / np.sqrt(some.var() + _LEAST_VARIANCE)


def centre_on_group(rewards: Floats, groups: Indices) -> Floats:
    """Return rewards less the mean of their group.

    Example:
        >>> centre_on_group(np.array([1.0, 0.0, 0.0, 0.5]), np.array([0, 0, 0, 0]))
        array([ 0.625, -0.375, -0.375,  0.125])

    """
    sizes = np.bincount(groups)
    means = np.bincount(groups, weights=rewards) / np.maximum(sizes, 1)
    return np.where(_differ(rewards, groups), rewards - means[groups], 0.0)


def _differ(rewards: Floats, groups: Indices) -> Flags:
    """Say for each trajectory whether its group's rewards differ at all."""
    count = int(groups.max(initial=-1)) + 1
    lowest, highest = np.full(count, np.inf), np.full(count, -np.inf)
    np.minimum.at(lowest, groups, rewards)
    np.maximum.at(highest, groups, rewards)
    return (highest > lowest)[groups]


def compare(values: Floats, groups: Indices, norm: Norm) -> Floats:
    """Return values less the mean of their group ("mean"), over its deviation too ("std").

    Example:
        >>> compare(np.array([1.0, 0.0, 0.0, 0.5]), np.zeros(4, int), "std")
        array([ 1.50755219, -0.90453131, -0.90453131,  0.30151044])

    """
    if norm == "none":
        return values
    centred = centre_on_group(values, groups)
    if norm == "mean":
        return centred
    squares = np.bincount(groups, weights=centred**2)
    deviations = np.sqrt(squares / np.maximum(np.bincount(groups), 1))
    return centred / (deviations + _EPS)[groups]


def sum_from(values: Floats, owners: Indices) -> Floats:
    """Return at each token the sum of `values` from it to the end of its trajectory.

    Example:
        >>> sum_from(np.array([1.0, 2.0, 4.0]), np.array([0, 0, 1]))
        array([3., 2., 4.])

    """
    sums = np.cumsum(values)
    ends = np.searchsorted(owners, owners, side="right") - 1
    return sums[ends] - sums + values


def turn_returns(batch: TokenBatch, discount: float) -> Floats:
    """Return [K] the discounted sum of the rewards from each turn on.

    What a trajectory's reward has beyond the rewards of its turns, such as the score of a reward
    function, is given to its last turn.

    Example:
        Two turns of rewards 0 and 1, trajectory's reward 1:

        >>> turn_returns(batch, 0.9)
        array([0.9, 1. ])

    """
    own, count = batch.turn_owners, len(batch.rewards)
    rewards = batch.turn_rewards.astype(np.float64)
    is_last = np.append(own[1:] != own[:-1], True)[: len(own)]
    rest = batch.rewards - np.bincount(own, weights=rewards, minlength=count)
    rewards[is_last] += rest[own[is_last]]
    for turn in range(len(rewards) - 2, -1, -1):
        if not is_last[turn]:
            rewards[turn] += discount * rewards[turn + 1]
    return rewards


def without_members(batch: TokenBatch, kept: Flags) -> TokenBatch:
    """Return the batch as if it had only the kept trajectories.

    Example:
        >>> without_members(batch, np.array([True, False])).rewards
        array([1.])

    """
    tokens, turns = kept[batch.owners], kept[batch.turn_owners]
    numbers, turn_numbers = np.cumsum(kept) - 1, np.cumsum(turns) - 1
    _, groups = np.unique(batch.groups[kept], return_inverse=True)
    return replace(
        batch,
        rewards=batch.rewards[kept],
        successes=batch.successes[kept],
        groups=groups,
        sampled_counts=batch.sampled_counts[kept],
        turn_rewards=batch.turn_rewards[turns],
        turn_owners=numbers[batch.turn_owners[turns]],
        owners=numbers[batch.owners[tokens]],
        turns=turn_numbers[batch.turns[tokens]],
        sampled=batch.sampled[tokens],
        behaviour=batch.behaviour[tokens],
        ages=batch.ages[tokens],
        proximal=None if batch.proximal is None else batch.proximal[tokens],
        reference=None if batch.reference is None else batch.reference[tokens],
        turn_states=None if batch.turn_states is None else batch.turn_states[turns],
    )
