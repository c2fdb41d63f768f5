"""Tiny checkpoints and hand-made trajectories for the trainer's tests."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from rollart.training.algorithms.clipped_policy import ClippedPolicy
from rollart.types import GroupId, Task, Trajectory, TrajectoryId, Turn, Version, token_trajectory

VOCABULARY = 40
torch.set_num_threads(1)


def write_checkpoint(
    directory: Path, *, width: int = 16, seed: int = 0, tied: bool = False
) -> Path:
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=width,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=256,
        initializer_range=0.3,
        tie_word_embeddings=tied,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        Qwen3ForCausalLM(config).save_pretrained(directory)
    (directory / "tokenizer.json").write_text("{}")
    return directory


def trainer_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Tell options of the trainer from keys of the algorithm, as the arguments of a trainer."""
    own = {"type", *(each.name for each in fields(ClippedPolicy))}
    return {
        "options": {key: value for key, value in values.items() if key not in own},
        "algorithm": {key: value for key, value in values.items() if key in own},
    }


def make_trajectory(
    *,
    id: int,  # noqa: A002
    group: int,
    reward: float,
    turns: list[Turn],
    success: bool = False,
) -> Trajectory:
    return token_trajectory(
        id=TrajectoryId(id),
        group=GroupId(group),
        task=Task(id=group, env="test", domain="test", seed=0),
        turns=tuple(turns),
        stop="terminated",
        success=success,
        reward=reward,
    )


def make_turn(
    prompt: list[int],
    tokens: list[int],
    logprobs: list[float],
    versions: list[int],
    *,
    reward: float = 0.0,
) -> Turn:
    return Turn(
        prompt_tokens=tuple(prompt),
        tokens=tuple(tokens),
        logprobs=tuple(logprobs),
        versions=tuple(Version(version) for version in versions),
        observation="",
        action="",
        reward=reward,
    )


def random_groups(
    seed: int, *, groups: int = 3, members: int = 4, version: int = 0
) -> list[list[Trajectory]]:
    """Trajectories of one to three turns with random tokens, log-probs and rewards."""
    random = np.random.default_rng(seed)

    def turn() -> Turn:
        count = int(random.integers(1, 5))
        return make_turn(
            random.integers(0, VOCABULARY, int(random.integers(2, 9))).tolist(),
            random.integers(0, VOCABULARY, count).tolist(),
            (-random.random(count) * 5).tolist(),
            [version] * count,
        )

    return [
        [
            make_trajectory(
                id=group * members + member,
                group=group,
                reward=float(random.integers(0, 3)) + member % 2,
                turns=[turn() for _ in range(int(random.integers(1, 4)))],
            )
            for member in range(members)
        ]
        for group in range(groups)
    ]
