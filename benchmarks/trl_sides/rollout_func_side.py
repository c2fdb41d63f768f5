"""TRL's `GRPOTrainer(rollout_func=…)` playing the game: the batched rollout a careful user writes.

All unfinished trajectories decode together through the model's own forward. The opening is
prefilled once per distinct prompt and copied to its group, the key-value cache is kept across
turns, finished rows leave the batch between turns. No text is tokenised twice. TRL reads no
sampling log-probs unless vLLM samples, so none are computed for it.

`--rollout generate` uses `model.generate` on the whole history each turn instead.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from transformers import DynamicCache, GenerationConfig

from benchmarks.trl_sides import game, side
from rollart.inference.renderer import ChatRenderer
from rollart.types import Message, open_chat

if TYPE_CHECKING:
    from trl import GRPOTrainer


class Table:
    """The trajectories of one step: their games, and their tokens as TRL wants them."""

    def __init__(self, seeds: Sequence[int], renderer: ChatRenderer) -> None:
        self.renderer = renderer
        self.envs = [game.make_env() for _ in seeds]
        openings = [env.reset(seed, {})[0] for env, seed in zip(self.envs, seeds, strict=True)]
        self.prompts = [
            list(renderer.start(open_chat(game.SYSTEM, opening))) for opening in openings
        ]
        self.completions: list[list[int]] = [[] for _ in seeds]
        self.masks: list[list[int]] = [[] for _ in seeds]
        self.rewards = [0.0] * len(seeds)
        self.turns = [0] * len(seeds)

    def answer(self, row: int, tokens: list[int]) -> list[int] | None:
        """Play sampled tokens; return the ids of the observation, or None when the game ended."""
        self.completions[row] += tokens
        self.masks[row] += [1] * len(tokens)
        action = self.renderer.decode(tokens)
        observation, reward, terminated, truncated, _ = self.envs[row].step(action)
        self.rewards[row] += reward
        self.turns[row] += 1
        if terminated or truncated or self.turns[row] == game.MAX_TURNS:
            return None
        answer = (Message.of("user", observation),)
        ids = list(self.renderer.extend(answer, closed=tokens[-1] in self.renderer.stop))
        self.completions[row] += ids
        self.masks[row] += [0] * len(ids)
        return ids


class CachedRollout:
    """Decodes all rows together and keeps their keys and values from turn to turn."""

    def __init__(self, model: torch.nn.Module, *, pad: int, stop: int) -> None:
        self.model = model
        self.pad = pad
        self.stop = stop
        self.cache = DynamicCache(config=model.config)
        self.mask = torch.zeros(0, 0, dtype=torch.long)
        self.length = torch.zeros(0, dtype=torch.long)
        self.logits = torch.zeros(0)

    def feed(self, tokens: torch.Tensor, mask: torch.Tensor) -> None:
        """Run `tokens` (left-padded where `mask` is 0) behind the cached ones."""
        positions = (self.length[:, None] + mask.cumsum(1) - 1).clamp_(min=0)
        self.mask = torch.cat([self.mask, mask], dim=1)
        self.length = self.length + mask.sum(1)
        self.logits = self.model(
            input_ids=tokens,
            attention_mask=self.mask,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]

    def open(self, prompts: Sequence[list[int]]) -> None:
        """Prefill each distinct prompt once and copy it to the rows that share it."""
        distinct = list(dict.fromkeys(tuple(prompt) for prompt in prompts))
        tokens, mask = left_pad(distinct, self.pad)
        self.mask = torch.zeros(len(distinct), 0, dtype=torch.long)
        self.length = torch.zeros(len(distinct), dtype=torch.long)
        self.feed(tokens, mask)
        place = {prompt: index for index, prompt in enumerate(distinct)}
        self.keep(torch.tensor([place[tuple(prompt)] for prompt in prompts]))

    def keep(self, rows: torch.Tensor) -> None:
        """Keep only these rows, in this order."""
        self.cache.batch_select_indices(rows)
        self.mask, self.length, self.logits = self.mask[rows], self.length[rows], self.logits[rows]

    def turn(self) -> list[list[int]]:
        """Sample every row up to its stop token."""
        sampled: list[torch.Tensor] = []
        running = torch.ones(len(self.length), dtype=torch.long)
        for index in range(game.MAX_TOKENS):
            # Exponential races draw from the softmax at a fraction of multinomial's cost.
            race = torch.empty_like(self.logits).exponential_().log_()
            token = (self.logits - race).argmax(1)
            sampled.append(torch.where(running.bool(), token, -1))
            ending = running * (token != self.stop)
            if index + 1 < game.MAX_TOKENS and ending.any():
                self.feed(torch.where(running.bool(), token, self.pad)[:, None], running[:, None])
            else:
                self.tail = (torch.where(running.bool(), token, self.pad), running)
            running = ending
            if not running.any():
                break
        rows = torch.stack(sampled, dim=1).tolist()
        return [[token for token in row if token >= 0] for row in rows]

    def observe(self, rows: list[int], observations: Sequence[list[int]]) -> None:
        """Go on with `rows` only: their last sampled token, then what they observed."""
        index = torch.tensor(rows)
        last, unfed = self.tail[0][index].tolist(), self.tail[1][index].tolist()
        self.keep(index)
        pieces = [
            ([token] if is_unfed else []) + ids
            for token, is_unfed, ids in zip(last, unfed, observations, strict=True)
        ]
        self.feed(*left_pad(pieces, self.pad))


def left_pad(rows: Sequence[Sequence[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return token ids and mask, padded on the left."""
    longest = max(len(row) for row in rows)
    tokens = [[pad] * (longest - len(row)) + list(row) for row in rows]
    mask = [[0] * (longest - len(row)) + [1] * len(row) for row in rows]
    return torch.tensor(tokens), torch.tensor(mask)


def roll_out_cached(table: Table, trainer: "GRPOTrainer") -> None:
    """Play all games with the cache kept across turns."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    tokenizer = trainer.processing_class
    with torch.inference_mode():
        batch = CachedRollout(model, pad=tokenizer.pad_token_id, stop=table.renderer.stop[0])
        batch.open(table.prompts)
        rows = list(range(len(table.envs)))
        while True:
            replies = [
                table.answer(row, tokens) for row, tokens in zip(rows, batch.turn(), strict=True)
            ]
            going = [index for index, reply in enumerate(replies) if reply is not None]
            if not going:
                return
            batch.observe(going, [replies[index] or [] for index in going])
            rows = [rows[index] for index in going]


def roll_out_generate(table: Table, trainer: "GRPOTrainer") -> None:
    """Play all games with `model.generate` on the whole history each turn."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    pad, stop = trainer.processing_class.pad_token_id, table.renderer.stop[0]
    config = GenerationConfig(
        max_new_tokens=game.MAX_TOKENS, do_sample=True, top_k=0, pad_token_id=pad, eos_token_id=stop
    )
    rows = list(range(len(table.envs)))
    while rows:
        tokens, mask = left_pad([table.prompts[row] + table.completions[row] for row in rows], pad)
        with torch.inference_mode():
            out = model.generate(input_ids=tokens, attention_mask=mask, generation_config=config)
        going = []
        for row, ids in zip(rows, out[:, tokens.shape[1] :].tolist(), strict=True):
            end = ids.index(stop) + 1 if stop in ids else len(ids)
            if table.answer(row, ids[:end]) is not None:
                going.append(row)
        rows = going


class Rollout:
    """TRL's rollout function; remembers what each step earned."""

    def __init__(self, record: side.Record, renderer: ChatRenderer, *, cached: bool) -> None:
        self.record = record
        self.renderer = renderer
        self.roll_out = roll_out_cached if cached else roll_out_generate

    def __call__(self, prompts: list[str], trainer: "GRPOTrainer") -> dict[str, object]:
        """Play one trajectory per prompt: each names the seed of its game."""
        table = Table([int(prompt) for prompt in prompts], self.renderer)
        self.roll_out(table, trainer)
        self.record.rollout(
            trajectories=len(table.rewards),
            calls=sum(table.turns),
            prompt_tokens=sum(map(len, table.prompts)),
            sampled_tokens=sum(map(sum, table.masks)),
            completion_tokens=sum(map(len, table.completions)),
        )
        return {
            "prompt_ids": table.prompts,
            "completion_ids": table.completions,
            "logprobs": None,
            "env_mask": table.masks,
            "game_reward": table.rewards,
        }


def earned(game_reward: list[float], **_: object) -> list[float]:
    """Return the rewards the games gave."""
    return game_reward


def main() -> None:
    """Train and print one JSON line."""
    arguments = side.parse_arguments(__doc__, rollouts=("cached", "generate"))
    record = side.Record()
    renderer = game.make_renderer(arguments.checkpoint)
    rollout = Rollout(record, renderer, cached=arguments.rollout == "cached")
    rows = [{"prompt": str(seed)} for seed in range(game.TASKS)]
    side.train(arguments, record, rows=rows, options={}, reward_funcs=earned, rollout_func=rollout)


if __name__ == "__main__":
    main()
