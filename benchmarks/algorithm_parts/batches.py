"""Hand-made batches: what algorithms are compared on, as plain values and as the trainer's arrays.

Observations stand between turns, one attempt sampled nothing, one group has a single member, one
lost members to failures, one has equal rewards. Log-probs are drawn from a seed; those of the
behaviour are float32 values, as engines give them.
"""

from dataclasses import dataclass, field
from random import Random

import numpy as np

from rollart.training.batch import Batch, decode, encode
from rollart.types import (
    GroupId,
    Task,
    Trajectory,
    TrajectoryId,
    Turn,
    Version,
    token_trajectory,
)


@dataclass(slots=True, kw_only=True)
class Drawn:
    """One sampled token and what is known of it."""

    behaviour: float
    proximal: float
    reference: float
    logp: float
    """Under the weights being trained: what a gradient is taken to."""
    entropy: float
    advantage: float = 0.0
    weight: float = 0.0
    held: float = 0.0
    """`logp` where the formula stops the gradient."""


@dataclass(slots=True, kw_only=True)
class Step:
    """One turn: what the agent saw, the tokens it drew, what the environment gave."""

    tokens: list[Drawn]
    reward: float = 0.0
    state: str = ""
    prompt: int = 2


@dataclass(slots=True, kw_only=True)
class Attempt:
    """One trajectory."""

    group: int
    reward: float
    steps: list[Step] = field(default_factory=list[Step])

    @property
    def tokens(self) -> list[Drawn]:
        """The sampled tokens of all turns."""
        return [token for step in self.steps for token in step.tokens]


Shape = tuple[int, float, tuple[tuple[int, float, str], ...]]
"""Group, reward, and for each turn its sampled tokens, its reward and the state before it."""
SHAPES: dict[str, tuple[Shape, ...]] = {
    "lengths": (
        (0, 1.0, ((1, 0.0, "s0"), (1, 1.0, "s1"))),
        (0, 0.0, ((2, 0.0, "s0"), (1, 0.0, "s2"), (1, 0.0, "s1"))),
        (0, 0.0, ((1, 0.0, "s0"),)),
        (0, 0.5, ((1, 0.25, "s0"), (2, 0.25, "s3"))),
    ),
    "mixed": (
        (0, 1.0, ((2, 0.5, "a"), (1, 0.5, "b"))),
        (0, 0.0, ((3, 0.0, "a"), (2, 0.0, "b"), (1, 0.0, "c"))),
        (0, 0.25, ((0, 0.0, "a"),)),  # it sampled nothing
        (1, 1.0, ((4, 0.0, "a"), (2, 0.0, "a"))),  # alone: the others failed; scored at its end
        (2, 0.5, ((2, 0.5, "x"),)),
        (2, 0.5, ((1, 0.5, "x"),)),
        (3, -2.0, ((3, -2.0, "y"),)),
        (3, 1.0, ((1, 0.0, "y"), (1, 0.0, "z"), (2, 1.0, "y"))),
        (3, 1.0, ((2, 1.0, "y"),)),
        (3, 0.0, ((5, 0.0, "y"), (1, 0.0, "z"))),
    ),
    "binary": tuple(
        (group, reward, ((length, 0.0, "s"), (1, reward, f"s{length}")))
        for group, rewards in enumerate(((1.0, 0.0, 0.0, 0.0), (1.0, 1.0, 0.0), (0.0, 0.0)))
        for reward, length in zip(rewards, (2, 3, 1, 4), strict=False)
    ),
}


def make_attempts(shapes: tuple[Shape, ...], *, seed: int, spread: float) -> list[Attempt]:
    """Draw log-probs for attempts of these shapes; policies differ by about `spread`."""
    random = Random(seed)

    def near(value: float, width: float) -> float:
        return min(value + random.gauss(0, width), -1e-3)

    def token() -> Drawn:
        behaviour = float(np.float32(-2.5 * random.random() - 0.05))
        proximal = near(behaviour, spread)
        return Drawn(
            behaviour=behaviour,
            proximal=proximal,
            reference=near(proximal, spread),
            logp=near(proximal, spread),
            entropy=2 * random.random(),
        )

    return [
        Attempt(
            group=group,
            reward=reward,
            steps=[
                Step(tokens=[token() for _ in range(count)], reward=given, state=state)
                for count, given, state in turns
            ],
        )
        for group, reward, turns in shapes
    ]


def encode_attempts(attempts: list[Attempt]) -> Batch:
    """Return attempts as the trainer gets them."""
    groups: dict[int, list[Trajectory]] = {}
    for number, attempt in enumerate(attempts):
        turns = tuple(
            Turn(
                prompt_tokens=(1,) * step.prompt,
                tokens=(2,) * len(step.tokens),
                logprobs=tuple(token.behaviour for token in step.tokens),
                versions=(Version(0),) * len(step.tokens),
                observation=step.state,
                action="",
                reward=step.reward,
            )
            for step in attempt.steps
        )
        trajectory = token_trajectory(
            id=TrajectoryId(number),
            group=GroupId(attempt.group),
            task=Task(id=attempt.group, env="test", domain="test", seed=0),
            turns=turns,
            stop="terminated",
            success=attempt.reward > 0,
            reward=attempt.reward,
        )
        groups.setdefault(attempt.group, []).append(trajectory)
    return decode(encode(list(groups.values())))
