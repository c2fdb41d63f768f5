"""The batch as flat arrays, and how its sequences are dealt to minibatches and ranks.

One sequence per trajectory: the tokens of all its turns in order, prompts and completions, exactly
as the engine read and sampled them. Nothing is tokenised here. `encode` and `decode` check the
same invariants, so neither side can pass on a batch the other would misread. numpy only.

Arrays (T tokens, K turns, n trajectories):

    tokens        int32   [T]    token ids
    sampled       bool    [T]    True where the policy drew the token
    logprobs      float32 [T]    behaviour log-probability, 0 where not sampled
    versions      int32   [T]    version that drew the token, -1 where not sampled
    turns         int32   [T]    index of its turn in the batch; a turn begins with its prompt
    offsets       int64   [n+1]  trajectory i owns tokens offsets[i] … offsets[i+1]
    turn_rewards  float64 [K]    what the environment gave for the turn
    turn_states   int64   [K]    what the agent saw before it: equal in a group where that is equal
    turn_offsets  int64   [n+1]  trajectory i owns turns turn_offsets[i] … turn_offsets[i+1]
    groups        int64   [n]    index of its group in the batch, ascending from 0
    ids           int64   [n]    trajectory ids
    rewards       float64 [n]
    successes     bool    [n]
    cuts          bool    [n]    whether a limit of tokens or turns ended it
    temperatures  float64 [n]    what the logits were divided by when sampling
    top_ps        float64 [n]    what was left of the distribution (`Sampling`): 1 all of it,
    top_ks        int64   [n]    0 all of it,
    min_ps        float64 [n]    0 all of it

Which sequences can move the weights, and which update each belongs to, is a function of the batch,
the options and the version alone, so every rank and every resumed run deals alike.

Sequences are dealt to ranks by cost: one of n tokens costs n + attention·n², the matrix products of
its tokens and the scores between them. The most expensive goes first, to the rank with the least to
do, so no rank has more than another by more than one sequence. All ranks deal alike from the same
lengths, and so know without asking how many micro-batches each has.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollart.errors import InvariantError
from rollart.seeds import derive_seed
from rollart.training.options import TrainingOptions
from rollart.types import Trajectory, Turn
from rollart.types.tokens import Floats, TokenBatch

_DTYPES: dict[str, type] = {
    "tokens": np.int32,
    "sampled": np.bool_,
    "logprobs": np.float32,
    "versions": np.int32,
    "turns": np.int32,
    "offsets": np.int64,
    "turn_rewards": np.float64,
    "turn_states": np.int64,
    "turn_offsets": np.int64,
    "groups": np.int64,
    "ids": np.int64,
    "rewards": np.float64,
    "successes": np.bool_,
    "cuts": np.bool_,
    "temperatures": np.float64,
    "top_ps": np.float64,
    "top_ks": np.int64,
    "min_ps": np.float64,
}
_PER_TOKEN = ("tokens", "sampled", "logprobs", "versions", "turns")
_PER_TURN = ("turn_rewards", "turn_states")
_SAMPLING = ("temperatures", "top_ps", "top_ks", "min_ps")
_PER_TRAJECTORY = ("groups", "ids", "rewards", "successes", "cuts", *_SAMPLING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A checked batch; the fields are the arrays of the module's table.

    Example:
        >>> batch = decode(encode(groups))
        >>> batch.rewards, batch.sampled_counts
        (array([1., 0.]), array([3, 1]))

    """

    tokens: NDArray[np.int32]
    sampled: NDArray[np.bool_]
    logprobs: NDArray[np.float32]
    versions: NDArray[np.int32]
    turns: NDArray[np.int32]
    offsets: NDArray[np.int64]
    turn_rewards: NDArray[np.float64]
    turn_states: NDArray[np.int64]
    turn_offsets: NDArray[np.int64]
    groups: NDArray[np.int64]
    ids: NDArray[np.int64]
    rewards: NDArray[np.float64]
    successes: NDArray[np.bool_]
    cuts: NDArray[np.bool_]
    temperatures: NDArray[np.float64]
    top_ps: NDArray[np.float64]
    top_ks: NDArray[np.int64]
    min_ps: NDArray[np.float64]

    @property
    def owners(self) -> NDArray[np.int64]:
        """The trajectory each token belongs to."""
        return np.repeat(np.arange(len(self.rewards)), np.diff(self.offsets))

    @property
    def sampled_counts(self) -> NDArray[np.int64]:
        """How many sampled tokens each trajectory has."""
        return np.bincount(self.owners[self.sampled], minlength=len(self.rewards))

    @property
    def is_truncated(self) -> bool:
        """Whether any token was drawn from less than the whole distribution."""
        return bool(((self.top_ps < 1) | (self.top_ks > 0) | (self.min_ps > 0)).any())

    def without_cuts(self) -> "Batch":
        """Return the batch of the attempts that no limit cut short."""
        if not self.cuts.any():
            return self
        kept = ~self.cuts
        turn_counts = np.diff(self.turn_offsets)
        of_turns, of_tokens = np.repeat(kept, turn_counts), kept[self.owners]
        values = {name: getattr(self, name)[kept] for name in _PER_TRAJECTORY}
        values |= {name: getattr(self, name)[of_turns] for name in _PER_TURN}
        values |= {name: getattr(self, name)[of_tokens] for name in _PER_TOKEN}
        values["turns"] = (np.cumsum(of_turns) - 1)[values["turns"]].astype(np.int32)
        for name in ("groups", "turn_states"):
            values[name] = np.unique(values[name], return_inverse=True)[1].astype(np.int64)
        for name, counts in (("offsets", np.diff(self.offsets)), ("turn_offsets", turn_counts)):
            values[name] = np.concatenate(([0], np.cumsum(counts[kept])))
        return decode(values)

    def view(
        self,
        *,
        version: int,
        proximal: NDArray[np.float32] | None = None,
        reference: NDArray[np.float32] | None = None,
    ) -> TokenBatch:
        """Return the batch as an algorithm sees it from the weights of `version`."""
        turn_counts = np.diff(self.turn_offsets)
        ages = np.where(self.sampled, version - self.versions.astype(np.int64), 0)
        return TokenBatch(
            rewards=self.rewards,
            successes=self.successes,
            groups=self.groups,
            sampled_counts=self.sampled_counts,
            turn_rewards=self.turn_rewards,
            turn_states=self.turn_states,
            turn_owners=np.repeat(np.arange(len(turn_counts)), turn_counts),
            owners=self.owners,
            turns=self.turns.astype(np.int64),
            sampled=self.sampled,
            behaviour=self.logprobs,
            ages=ages,
            proximal=proximal,
            reference=reference,
        )


def encode(
    groups: Sequence[Sequence[Trajectory]],
    *,
    temperature: float = 1.0,
    top_p: float = 1.0,
    top_k: int = 0,
    min_p: float = 0.0,
) -> dict[str, NDArray[Any]]:
    """Lay groups of trajectories out as flat arrays; groups without members leave no trace."""
    sampling = dict(zip(_SAMPLING, (temperature, top_p, top_k, min_p), strict=True))
    columns: dict[str, list[Any]] = {name: [] for name in _DTYPES}
    states: dict[tuple[int, str], int] = {}
    columns["offsets"].append(0)
    columns["turn_offsets"].append(0)
    for index, group in enumerate(group for group in groups if group):
        for member in group:
            for turn in member.turns:
                _append_turn(columns, turn, member.id)
                state = states.setdefault((index, turn.observation), len(states))
                columns["turn_states"].append(state)
            columns["offsets"].append(len(columns["tokens"]))
            columns["turn_offsets"].append(len(columns["turn_rewards"]))
            columns["groups"].append(index)
            columns["ids"].append(member.id)
            columns["rewards"].append(member.reward)
            columns["successes"].append(member.success)
            is_cut = any(turn.is_cut for turn in member.turns[-1:])
            columns["cuts"].append(is_cut or member.stop != "terminated")
            for name, value in sampling.items():
                columns[name].append(value)
    batch = {name: np.array(columns[name], dtype=dtype) for name, dtype in _DTYPES.items()}
    decode(batch)
    return batch


def decode(arrays: Mapping[str, NDArray[Any]]) -> Batch:
    """Check flat arrays and return them as a batch; the arrays are not copied."""
    for name, dtype in _DTYPES.items():
        if name not in arrays:
            raise InvariantError(f"batch without the array {name}")
        if arrays[name].dtype != dtype or arrays[name].ndim != 1:
            raise InvariantError(
                f"batch.{name} is {arrays[name].dtype} of shape {arrays[name].shape}; "
                f"it must be {np.dtype(dtype)} with one dimension"
            )
    batch = Batch(**{name: arrays[name] for name in _DTYPES})
    _check_lengths(batch)
    _check_values(batch)
    return batch


def _append_turn(columns: dict[str, list[Any]], turn: Turn, trajectory: int) -> None:
    if not len(turn.tokens) == len(turn.logprobs) == len(turn.versions):
        raise InvariantError(
            f"trajectory {trajectory} has a turn of {len(turn.tokens)} tokens, "
            f"{len(turn.logprobs)} log-probs and {len(turn.versions)} versions"
        )
    prompt = len(turn.prompt_tokens)
    columns["tokens"] += (*turn.prompt_tokens, *turn.tokens)
    columns["sampled"] += [False] * prompt + [True] * len(turn.tokens)
    columns["logprobs"] += (*[0.0] * prompt, *turn.logprobs)
    columns["versions"] += (*[-1] * prompt, *turn.versions)
    columns["turns"] += [len(columns["turn_rewards"])] * (prompt + len(turn.tokens))
    columns["turn_rewards"].append(turn.reward)


def _check_lengths(batch: Batch) -> None:
    offsets = batch.offsets
    if len(offsets) == 0 or offsets[0] != 0 or (np.diff(offsets) < 1).any():
        raise InvariantError("batch.offsets must rise from 0: every trajectory has a token")
    for name in _PER_TOKEN:
        if len(getattr(batch, name)) != offsets[-1]:
            raise InvariantError(
                f"batch.{name} has {len(getattr(batch, name))} entries for {offsets[-1]} tokens"
            )
    for name in _PER_TRAJECTORY:
        if len(getattr(batch, name)) != len(offsets) - 1:
            raise InvariantError(
                f"batch.{name} has {len(getattr(batch, name))} entries "
                f"for {len(offsets) - 1} trajectories"
            )
    turn_offsets = batch.turn_offsets
    has_turns = len(turn_offsets) == len(offsets) and turn_offsets[0] == 0
    if not has_turns or (np.diff(turn_offsets) < 1).any():
        raise InvariantError("batch.turn_offsets must rise from 0: every trajectory has a turn")
    for name in _PER_TURN:
        if len(getattr(batch, name)) != turn_offsets[-1]:
            raise InvariantError(
                f"batch.{name} has {len(getattr(batch, name))} entries for {turn_offsets[-1]} turns"
            )


def _check_values(batch: Batch) -> None:
    owners = batch.owners
    is_inside = (batch.turns >= batch.turn_offsets[owners]) & (
        batch.turns < batch.turn_offsets[owners + 1]
    )
    steps = np.diff(batch.groups, prepend=0)
    drawn = batch.sampled
    checks = {
        "groups must ascend from 0 without gaps": not ((steps < 0) | (steps > 1)).any(),
        "tokens must not be negative": not (batch.tokens < 0).any(),
        "turns must be those of the token's trajectory": bool(is_inside.all()),
        "turns must ascend": not (np.diff(batch.turns) < 0).any(),
        "rewards must be finite": bool(np.isfinite(batch.rewards).all()),
        "turn_rewards must be finite": bool(np.isfinite(batch.turn_rewards).all()),
        "logprobs must be finite": bool(np.isfinite(batch.logprobs).all()),
        "logprobs must be 0 where nothing was sampled": not batch.logprobs[~drawn].any(),
        "versions must be at least 0 where sampled": not (batch.versions[drawn] < 0).any(),
        "versions must be -1 where nothing was sampled": not (batch.versions[~drawn] != -1).any(),
        "the first token of a trajectory is never sampled": not drawn[batch.offsets[:-1]].any(),
        "temperatures must be finite and above 0 (greedy sampling cannot be trained on)": bool(
            (np.isfinite(batch.temperatures) & (batch.temperatures > 0)).all()
        ),
        "top_ps must be above 0 and at most 1": bool(
            ((batch.top_ps > 0) & (batch.top_ps <= 1)).all()
        ),
        "top_ks must be at least 0": not (batch.top_ks < 0).any(),
        "min_ps must lie between 0 and 1": bool(((batch.min_ps >= 0) & (batch.min_ps <= 1)).all()),
    }
    for claim, holds in checks.items():
        if not holds:
            raise InvariantError(f"bad batch: {claim}")


def find_moving(
    batch: Batch, advantages: Floats, *, idle_tokens: bool, skip_zero_advantage: bool
) -> NDArray[np.bool_]:
    """Say which sequences can move the weights.

    `idle_tokens`: so can tokens of advantage 0.
    """
    has_tokens = batch.sampled_counts > 0
    if idle_tokens:
        return has_tokens
    signal = batch.owners[batch.sampled & (advantages != 0)]
    has_signal = np.bincount(signal, minlength=len(has_tokens)) > 0
    return has_signal if skip_zero_advantage or not has_signal.any() else has_tokens


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShare:
    """Which part of the sequences a rank computes.

    Example:
        >>> RankShare(rank=0, ranks=2).parts({0: 9, 1: 5, 2: 4})
        [{0: 9}, {1: 5, 2: 4}]

    """

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
