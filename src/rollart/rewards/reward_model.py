"""The reward model: a sequence classifier with one output, loaded from a local directory.

It reads the observations and the answer as a conversation, in its tokenizer's chat template if
there is one. The attempts of a group are scored in batches. A model is loaded once per process and
never from the network.
"""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rollart.errors import ConfigError
from rollart.rewards.answers import Source, find_answer
from rollart.types import Reward, Trajectory


def reward_model(
    trajectories: tuple[Trajectory, ...],
    *,
    path: str,
    source: Source = "last",
    batch: int = 8,
    max_tokens: int = 2048,
    squash: bool = False,
) -> list[Reward]:
    """Return the model's score of each attempt, or its sigmoid with `squash`."""
    for name, value in (("batch", batch), ("max_tokens", max_tokens)):
        if value < 1:
            raise ConfigError(f"reward.options.{name}", value, "must be at least 1")
    model, tokenizer = _load(path)
    texts = [_render(tokenizer, trajectory, source) for trajectory in trajectories]
    scores: list[float] = []
    for start in range(0, len(texts), batch):
        scores += _score(model, tokenizer, texts[start : start + batch], max_tokens)
    if not squash:
        return [Reward(value=score) for score in scores]
    values = torch.tensor(scores, dtype=torch.float64).sigmoid().tolist()
    return [Reward(value=v, parts={"score": s}) for v, s in zip(values, scores, strict=True)]


@lru_cache(maxsize=2)
def _load(path: str) -> tuple[Any, Any]:
    if not (Path(path) / "config.json").is_file():
        raise ConfigError("reward.options.path", path, "must be a directory with a config.json")
    model = AutoModelForSequenceClassification.from_pretrained(path, local_files_only=True)
    if model.config.num_labels != 1:
        fix = f"has {model.config.num_labels} outputs; a reward model has one"
        raise ConfigError("reward.options.path", path, fix)
    tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.pad_token_id is None:
        raise ConfigError("reward.options.path", path, "its tokenizer has no pad or eos token")
    # A text that is too long keeps its end, where the answer is.
    tokenizer.truncation_side, tokenizer.padding_side = "left", "right"
    model.config.pad_token_id = tokenizer.pad_token_id
    return model.eval(), tokenizer


def _render(tokenizer: Any, trajectory: Trajectory, source: Source) -> str:
    asked = "\n\n".join(turn.observation for turn in trajectory.turns)
    answer = find_answer(trajectory, source=source) or ""
    if tokenizer.chat_template is None:
        return f"{asked}\n\n{answer}"
    messages = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
    return tokenizer.apply_chat_template(messages, tokenize=False)


def _score(model: Any, tokenizer: Any, texts: Sequence[str], max_tokens: int) -> list[float]:
    inputs = tokenizer(
        list(texts),
        return_tensors="pt",
        padding=True,
        truncation=True,
        max_length=max_tokens,
        add_special_tokens=tokenizer.chat_template is None,
    )
    with torch.inference_mode():
        return model(**inputs.to(model.device)).logits[:, 0].double().tolist()
