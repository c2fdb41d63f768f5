"""The guard: engine and trainer must agree on the log-probs of the tokens they share.

Policy gradients assume that the tokens of a batch were drawn from the policy that is trained, with
the log-probs that the engine recorded. Whatever makes the two compute different functions (a config
read in two ways, a tensor that one side ignores, a cache of older weights, sequences that see each
other in a packed row) biases every step and raises no error. So before a step the trainer scores a
sample of the batch's tokens and compares:

    which tokens   those drawn by the very weights the trainer holds, in turns drawn by no others;
                   if a batch has none, those of a version whose weights were kept for this
    what           |trainer's log-prob - engine's|, both after temperature and truncation
    how many       many at the first step, a sample after each later update
    how far        on average at most the tolerance, and no token more than ten times it

An optimizer whose steps are lost in rounding makes engine and trainer agree on weights that do not
move, so the guard also looks at how many of the weights with a gradient an update moved.

numpy only: the trainer scores, the guard chooses and judges.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rollart.errors import GuardError
from rollart.seeds import derive_seed
from rollart.training.batch import Batch
from rollart.training.options import TrainingOptions

TOLERANCES = {"float32": 1e-3, "bfloat16": 0.05}
"""Nats that rounding explains on average over tokens, by the coarser dtype of the two sides."""
LARGEST = 10.0
"""How many times the tolerance a single token may be off."""
FIRST_TOKENS, LATER_TOKENS = 4096, 512
"""Tokens, prompts included, that are scored at the first step and at later ones."""
LEAST_MOVED = 0.5
"""Share of weights with a gradient that an update at the full learning rate must move."""
_CAUSES = (
    "engine and trainer read config.json or the weights differently (RoPE, tied embeddings, "
    "biases), the engine holds other weights or a cache of older ones, another engine computes "
    "another model, or packed sequences see each other"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSampling:
    """How the engine that samples the batches computes.

    Example:
        >>> EngineSampling(dtype="bfloat16")

    """

    dtype: str = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gap:
    """How far engine and trainer are apart on the tokens that were compared.

    Example:
        >>> Gap(version=3, tokens=180, mean=0.31, largest=1.4, tolerance=1e-3,
        ...     dtype="float32").is_exceeded
        True

    """

    version: int
    tokens: int
    mean: float
    """Mean absolute difference of the log-probs, in nats."""
    largest: float
    tolerance: float
    dtype: str
    """The coarser number format of the two sides."""

    @property
    def is_exceeded(self) -> bool:
        """Whether rounding does not explain it; what is not a number exceeds everything."""
        return not (self.mean <= self.tolerance and self.largest <= LARGEST * self.tolerance)

    def metrics(self) -> dict[str, float]:
        """Return the metrics of a step."""
        return {
            "guard_gap": self.mean,
            "guard_gap_max": self.largest,
            "guard_tokens": float(self.tokens),
            "guard_version": float(self.version),
            "guard_exceeded": float(self.is_exceeded),
        }

    def describe(self) -> str:
        """Return what was compared, how far apart it is, and what usually causes it."""
        return (
            f"engine and trainer disagree: over {self.tokens} tokens sampled by version "
            f"{self.version}, the trainer's log-probs are {self.mean:.2g} nats from the engine's "
            f"on average and {self.largest:.2g} at most; {self.dtype} explains {self.tolerance:g} "
            f"and {LARGEST * self.tolerance:g}. Usual causes: {_CAUSES}. "
            'training.guard = "warn" trains all the same, training.guard_tolerance accepts more'
        )


class Guard:
    """Chooses what is compared and judges what was found.

    Example:
        >>> guard = Guard(TrainingOptions(), EngineSampling())
        >>> guard.choose(batch, version=0)
        array([3, 7, 12])

    """

    def __init__(self, options: TrainingOptions, engine: EngineSampling | None) -> None:
        self._options = options
        self.engine = engine or EngineSampling()
        self.is_on = engine is not None and options.guard != "off"
        self._is_first = True
        is_coarse = options.mixed_precision or "bfloat16" in (options.dtype, self.engine.dtype)
        self.dtype = "bfloat16" if is_coarse else "float32"
        self.tolerance = options.guard_tolerance or TOLERANCES[self.dtype]

    def choose(self, batch: Batch, *, version: int) -> NDArray[np.int64]:
        """Return the sequences to score, which hold tokens that this version drew."""
        counts = np.bincount(batch.owners[comparable(batch, version)], minlength=len(batch.rewards))
        found = np.flatnonzero(counts)
        if not len(found):
            return found
        lengths = np.diff(batch.offsets)[found]
        seed = derive_seed(self._options.seed, version)
        order = np.random.default_rng(seed).permutation(len(found))
        longest = int(lengths.argmax())  # positions far on are where scaling of RoPE shows
        order = np.concatenate([[longest], order[order != longest]])
        limit = FIRST_TOKENS if self._is_first else LATER_TOKENS
        before = np.cumsum(lengths[order]) - lengths[order]
        return np.sort(found[order[before < limit]])

    def compare(
        self, batch: Batch, logprobs: NDArray[np.float32], *, sequences: Any, version: int
    ) -> Gap:
        """Return how far the trainer's log-probs of these sequences are from the engine's."""
        chosen = comparable(batch, version) & np.isin(batch.owners, sequences)
        apart = np.abs(logprobs[chosen].astype(np.float64) - batch.logprobs[chosen])
        self._is_first = False
        return Gap(
            version=version,
            tokens=len(apart),
            mean=float(apart.mean()),
            largest=float(apart.max()),
            tolerance=self.tolerance,
            dtype=self.dtype,
        )

    def judge(self, gap: Gap) -> dict[str, float]:
        """Return a gap's metrics; raise a GuardError if it is too large and the run must stop."""
        if gap.is_exceeded and self._options.guard == "stop":
            raise GuardError(gap.describe())
        return gap.metrics()

    def judge_update(self, moved: float, *, learning_rate: float) -> dict[str, float]:
        """Judge the share of weights that an update moved, likewise.

        In a warm-up, or where the learning rate has fallen, little may move.
        """
        is_full = learning_rate >= self._options.learning_rate / 2
        is_lost = is_full and moved < LEAST_MOVED
        if is_lost and self._options.guard == "stop":
            raise GuardError(describe_lost(moved, self._options))
        return {"weights_moved": moved, "updates_lost": float(is_lost)}

    def warnings_of(self, metrics: Mapping[str, float]) -> dict[str, str]:
        """Return what there is to say of a step's metrics where the run does not stop, by kind."""
        found: dict[str, str] = {}
        if metrics.get("guard_exceeded"):
            gap = Gap(
                version=int(metrics["guard_version"]),
                tokens=int(metrics["guard_tokens"]),
                mean=metrics["guard_gap"],
                largest=metrics["guard_gap_max"],
                tolerance=self.tolerance,
                dtype=self.dtype,
            )
            found["gap"] = gap.describe()
        if metrics.get("updates_lost"):
            found["updates"] = describe_lost(metrics["weights_moved"], self._options)
        return found


def describe_lost(moved: float, options: TrainingOptions) -> str:
    """Return the message about an update that rounding undid."""
    return (
        f"the optimizer moved {moved:.1%} of the weights that have a gradient: steps of "
        f"training.learning_rate = {options.learning_rate:g} are lost in rounding (training.dtype "
        f'= "{options.dtype}"); keep the weights in float32 or raise the learning rate'
    )


def comparable(batch: Batch, version: int) -> NDArray[np.bool_]:
    """Say which tokens a version drew in turns that no other version had a part in.

    Within a turn that began under older weights, an engine may keep what it computed with them.
    """
    is_of_version = batch.sampled & (batch.versions == version)
    is_other = batch.sampled & (batch.versions != version)
    mixed = np.bincount(batch.turns[is_other], minlength=len(batch.turn_rewards)) > 0
    return is_of_version & ~mixed[batch.turns]
