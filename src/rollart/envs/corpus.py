"""What environments write, as text for a tokenizer to learn its words from.

Deterministic: the same environments and seed give the same texts.
"""

import asyncio

from rollart.envs.loading import SHIPPED, make_env
from rollart.envs.players import NoisyPlayer, RandomPlayer, Suggesting, play
from rollart.ports import Env

_EPISODES = 100
_TURNS = 10


def collect_texts(env: Env, *, seed: int = 0, episodes: int = _EPISODES) -> tuple[str, ...]:
    """Return the texts of some plays: system prompt, observations and actions."""
    player = NoisyPlayer(noise=0.5) if isinstance(env, Suggesting) else RandomPlayer()

    async def collect() -> list[str]:
        texts: list[str] = []
        for episode in range(episodes):
            record = await play(env, player, seed=seed + episode, max_turns=_TURNS)
            texts += [getattr(env, "system_prompt", ""), *record.observations, *record.actions]
        return texts

    return tuple(asyncio.run(collect()))


def shipped_texts() -> tuple[str, ...]:
    """Return the texts of all shipped environments with their default options."""
    return tuple(text for name in SHIPPED for text in collect_texts(make_env(name, options={})))
