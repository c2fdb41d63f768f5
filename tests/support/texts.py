"""What the shipped environments write, as texts for a tokenizer to learn its words from."""

import asyncio
from functools import cache

from rollart.envs.registry import make_env
from rollart.envs.trial import NoisyPlayer, play
from rollart.plugins import BUILT_IN


@cache
def shipped_texts() -> tuple[str, ...]:
    async def collect() -> list[str]:
        texts: list[str] = []
        for name in BUILT_IN["env"]:
            env = make_env(name, options={})
            texts.append(env.system_prompt)
            for seed in range(100):
                record = await play(env, NoisyPlayer(noise=0.5), seed=seed, max_turns=10)
                texts += [*record.observations, *record.actions]
        return texts

    return tuple(asyncio.run(collect()))
