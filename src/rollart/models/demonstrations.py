"""Plays as token ids: what a warm start learns from.

Tokens are laid out exactly as a rollout lays them out, by the same Renderer; `sampled` marks what
the policy would have sampled: each action and the stop token behind it, nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from rollart.ports import Renderer


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """One play; `sampled` says for each token whether the player chose it."""

    tokens: tuple[int, ...]
    sampled: tuple[bool, ...]


class Encoder(Renderer, Protocol):
    """A Renderer that can also encode an action's text."""

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of plain text."""
        ...


def demonstrate(
    renderer: Encoder, *, system: str, observations: Sequence[str], actions: Sequence[str]
) -> Demonstration:
    """Lay out a play; observations after the last action are left out."""
    tokens: list[int] = []
    sampled: list[bool] = []
    for turn, (observation, action) in enumerate(zip(observations, actions, strict=False)):
        if turn == 0:
            prompt = renderer.start(system, observation)
        else:
            prompt = renderer.extend(observation, closed=True)
        chosen = (*renderer.encode(action), renderer.stop[0])
        tokens += [*prompt, *chosen]
        sampled += [False] * len(prompt) + [True] * len(chosen)
    return Demonstration(tokens=tuple(tokens), sampled=tuple(sampled))
