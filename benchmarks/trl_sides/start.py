"""Where every side starts: the tiny model, taught the form of its answers by a noisy player.

Two checkpoints come from the same first weights and the same plays. `plain` answers with the bare
number; `tool` with the shortest tool call a response template can read (`#7`), under a chat
template that spends no token on the tool's schema, so that tool calls cost TRL as few tokens as
possible. The player moves at random half of the time: reinforcement learning is left to improve.
"""

import argparse
import asyncio
import json
from pathlib import Path

from transformers import AutoTokenizer

from benchmarks.trl_sides import game
from rollart.envs.trial import NoisyPlayer, Play, play
from rollart.inference.renderer import ChatRenderer
from rollart.models.options import ModelOptions
from rollart.models.tiny import build_tiny
from rollart.models.tokenizer import build_tokenizer
from rollart.models.warm_start import Demonstration, demonstrate, warm_start

SIZE = "0.3M"
CALL = "#"
"""Opens a tool call; the rest of the turn is the number."""
TOOL_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message.role == 'tool' %}<|user|>{{ message.content }}"
    "{% elif message.role == 'assistant' %}<|assistant|>"
    "{% for call in message.tool_calls or [] %}#"
    "{% if call.function.name == 'guess' %}{{ call.function.arguments.number }}"
    "{% else %}{{ call.function.name }}{{ call.function.arguments }}{% endif %}"
    "{% endfor %}{{ message.content }}<|end|>"
    "{% else %}{{ '<|' + message.role + '|>' + message.content }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "<|assistant|>",
    "fields": {
        "tool_calls": {
            "open": CALL,
            "close": "<|end|>",
            "repeats": True,
            "content": "int",
            "transform": {
                "type": "function",
                "function": {"name": "guess", "arguments": {"number": "{content}"}},
            },
        },
        "content": {"close": "<|end|>", "content": "text"},
    },
}


def play_games(count: int, *, noise: float) -> list[Play]:
    """Let the noisy player play."""

    async def play_all() -> list[Play]:
        env, player = game.make_env(), NoisyPlayer(noise=noise)
        return [
            await play(env, player, seed=game.TASKS + seed, max_turns=game.MAX_TURNS)
            for seed in range(count)
        ]

    return asyncio.run(play_all())


def as_tool_calls(renderer: ChatRenderer, record: Play) -> Demonstration:
    """Lay out a play as tool calls, ending with the empty answer that calls nothing."""
    actions = [*(CALL + action for action in record.actions), ""]
    return demonstrate(
        renderer, system=game.SYSTEM, observations=record.observations, actions=actions
    )


def as_answers(renderer: ChatRenderer, record: Play) -> Demonstration:
    """Lay out a play as bare answers."""
    return demonstrate(
        renderer, system=game.SYSTEM, observations=record.observations, actions=record.actions
    )


def write_checkpoints(directory: Path, *, episodes: int) -> dict[str, float]:
    """Write `plain` and `tool` below `directory`; return the last loss of each."""
    options = ModelOptions(warm_start_episodes=episodes)
    plays = play_games(episodes, noise=options.warm_start_noise)
    corpus = [game.SYSTEM, CALL, *(text for record in plays for text in record.observations)]
    untaught = directory / "untaught"
    build_tiny(SIZE, directory=untaught, seed=0, tokenizer=build_tokenizer(corpus))
    renderer = game.make_renderer(untaught)
    losses: dict[str, float] = {}
    for name, lay_out in (("plain", as_answers), ("tool", as_tool_calls)):

        def note(_step: int, _steps: int, loss: float, name: str = name) -> None:
            losses[name] = loss

        warm_start(
            untaught,
            [lay_out(renderer, record) for record in plays],
            options=options,
            directory_out=directory / name,
            on_progress=note,
        )
    tokenizer = AutoTokenizer.from_pretrained(directory / "tool")
    tokenizer.chat_template = TOOL_TEMPLATE
    tokenizer.response_template = RESPONSE_TEMPLATE
    tokenizer.save_pretrained(directory / "tool")
    return losses


def main() -> None:
    """Write the checkpoints and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--episodes", type=int, default=4000)
    arguments = parser.parse_args()
    print(json.dumps(write_checkpoints(arguments.directory, episodes=arguments.episodes)))


if __name__ == "__main__":
    main()
