"""The warm start: a short supervised training of a tiny model on demonstrations.

Demonstrations are laid out as tokens by the same Renderer that rollouts use; only tokens that the
player chose have a loss: each action and its stop token. The result is written completely or not at
all, so a cache entry that exists is complete. On one machine the same input gives the same weights.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from rollart.errors import ConfigError
from rollart.models.options import ModelOptions
from rollart.models.tiny import save_model
from rollart.models.tokenizer import load_tokenizer
from rollart.ports import Renderer
from rollart.types import Message, open_chat


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """One play; `sampled` says for each token whether the player chose it.

    Example:
        Demonstration(tokens=(1, 300, 2, 45, 4), sampled=(False, False, False, True, True))

    """

    tokens: tuple[int, ...]
    sampled: tuple[bool, ...]


class Encoder(Renderer, Protocol):
    """A Renderer that can also encode an action's text.

    Example:
        renderer.encode("up")  # (311,): the token ids of plain text, without role tokens

    """

    def encode(self, text: str) -> tuple[int, ...]:
        """Return the ids of plain text."""
        ...


def demonstrate(
    renderer: Encoder, *, system: str, observations: Sequence[str], actions: Sequence[str]
) -> Demonstration:
    """Return a play as tokens; observations after the last action are left out."""
    tokens: list[int] = []
    sampled: list[bool] = []
    for turn, (observation, action) in enumerate(zip(observations, actions, strict=False)):
        if turn == 0:
            prompt = renderer.start(open_chat(system, observation))
        else:
            prompt = renderer.extend([Message.of("user", observation)], closed=True)
        chosen = (*renderer.encode(action), renderer.stop[0])
        tokens += [*prompt, *chosen]
        sampled += [False] * len(prompt) + [True] * len(chosen)
    return Demonstration(tokens=tuple(tokens), sampled=tuple(sampled))


_WARM_UP = 0.05
_FLOOR = 0.05
_LEARNING_RATE = 3e-3
"""The highest; it rises, then falls along a cosine. Tiny models of all sizes learn well with it."""
_BETAS = (0.9, 0.98)
_LARGEST_NORM = 1.0
_IGNORED = -100
_PARTS = 2
_NO_ACTION = (
    "the games to imitate contain no action: raise model.warm_start_episodes, or set this to false"
)

Progress = Callable[[int, int, float], None]
"""Called after each optimizer step: steps done, total steps, the step's loss."""
Batch = tuple[Tensor, Tensor]
"""Token ids and, for each, the id to predict next or `_IGNORED`."""


def warm_start(
    directory_in: Path,
    demonstrations: Sequence[Demonstration],
    *,
    options: ModelOptions,
    directory_out: Path,
    on_progress: Progress,
) -> None:
    """Train the model of `directory_in` on `demonstrations`; write it to `directory_out`."""
    shown = [play for play in demonstrations if any(play.sampled)]
    if not shown:
        raise ConfigError("model.warm_start", True, _NO_ACTION)
    logging.disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(directory_in, dtype=torch.float32)
    train(model, shown, options=options, on_progress=on_progress)
    tokenizer = load_tokenizer(directory_in)
    save_model(model, tokenizer=tokenizer, directory=directory_out)


def train(
    model: PreTrainedModel,
    demonstrations: Sequence[Demonstration],
    *,
    options: ModelOptions,
    on_progress: Progress,
) -> None:
    """Train a model in place."""
    random = Random(options.seed)
    epochs = [_batches(demonstrations, options, random) for _ in range(options.warm_start_epochs)]
    batches = [batch for epoch in epochs for batch in epoch]
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=_LEARNING_RATE, betas=_BETAS, weight_decay=0.01
    )
    model.train()
    for step, batch in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = _LEARNING_RATE * _schedule(step, len(batches))
        optimizer.zero_grad(set_to_none=True)
        loss = _accumulate(model, batch)
        torch.nn.utils.clip_grad_norm_(model.parameters(), _LARGEST_NORM)
        optimizer.step()
        on_progress(step + 1, len(batches), loss)
    model.eval()


def _schedule(step: int, steps: int) -> float:
    """Return the learning rate's factor: a linear rise, then a cosine fall."""
    rise = max(1.0, _WARM_UP * steps)
    if step < rise:
        return (step + 1) / rise
    done = (step - rise) / max(1.0, steps - rise)
    return _FLOOR + (1 - _FLOOR) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))


def _batches(
    demonstrations: Sequence[Demonstration], options: ModelOptions, random: Random
) -> list[list[Demonstration]]:
    """Split the plays, in random order, into batches of about equal tokens."""
    order = random.sample(demonstrations, len(demonstrations))
    batches: list[list[Demonstration]] = [[]]
    room = options.warm_start_batch_tokens
    for play in order:
        if batches[-1] and room < len(play.tokens):
            batches.append([])
            room = options.warm_start_batch_tokens
        batches[-1].append(play)
        room -= len(play.tokens)
    return batches


def _pad(plays: Sequence[Demonstration]) -> Batch:
    """Return the batch padded on the right, where no token with a loss attends to padding."""
    longest = max(len(play.tokens) for play in plays)
    tokens = torch.zeros((len(plays), longest), dtype=torch.long)
    targets = torch.full((len(plays), longest), _IGNORED, dtype=torch.long)
    for row, play in enumerate(plays):
        ids = torch.tensor(play.tokens)
        tokens[row, : len(ids)] = ids
        chosen = torch.tensor(play.sampled[1:], dtype=torch.bool)
        targets[row, : len(ids) - 1] = torch.where(chosen, ids[1:], _IGNORED)
    return tokens, targets


def _accumulate(model: PreTrainedModel, batch: list[Demonstration]) -> float:
    """Add the batch's gradient; return its mean loss.

    A batch is drawn at random but run in parts of similar lengths, which saves most padding.
    """
    plays = sorted(batch, key=lambda play: len(play.tokens))
    size = math.ceil(len(plays) / _PARTS)
    chosen = sum(sum(play.sampled) for play in plays)
    mean = 0.0
    for first in range(0, len(plays), size):
        loss = _loss(model, _pad(plays[first : first + size])) / chosen
        loss.backward()
        mean += loss.item()
    return mean


def _loss(model: PreTrainedModel, batch: Batch) -> Tensor:
    """Return the summed loss; logits are computed only for tokens that have one."""
    tokens, targets = batch
    hidden: Tensor = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
    chosen = targets != _IGNORED
    head = model.get_output_embeddings()
    assert head is not None
    return cross_entropy(head(hidden[chosen]), targets[chosen], reduction="sum")
