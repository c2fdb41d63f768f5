import asyncio

import pytest
import torch
from chat_templates import tiny_tokenizer
from transformers import AutoModelForCausalLM

from rollart.envs.frozen_lake import FrozenLake
from rollart.envs.trial import NoisyPlayer, play
from rollart.errors import ConfigError
from rollart.inference.renderer import ChatRenderer
from rollart.models.options import ModelOptions
from rollart.models.tiny import build_tiny
from rollart.models.warm_start import Demonstration, demonstrate, warm_start

OPTIONS = ModelOptions(warm_start_epochs=2, warm_start_batch_tokens=256)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    directory = tmp_path_factory.mktemp("models") / "base"
    build_tiny("0.3M", directory=directory, seed=0, tokenizer=tiny_tokenizer())
    return directory


@pytest.fixture(scope="module")
def plays():
    renderer = ChatRenderer(tiny_tokenizer())

    async def collect():
        env = FrozenLake()
        return [await play(env, NoisyPlayer(noise=0.0), seed=s, max_turns=10) for s in range(60)]

    return [
        demonstrate(renderer, system="", observations=p.observations, actions=p.actions)
        for p in asyncio.run(collect())
    ]


def test_only_actions_and_their_stop_tokens_are_marked_as_sampled():
    tokenizer = tiny_tokenizer()
    shown = demonstrate(
        ChatRenderer(tokenizer),
        system="",
        observations=("holes b2", "a2", "fell in"),
        actions=("down", "right"),
    )
    text = "<|user|>holes b2<|assistant|>down<|end|><|user|>a2<|assistant|>right<|end|>"
    assert tokenizer.decode(shown.tokens) == text
    marked = [t for t, s in zip(shown.tokens, shown.sampled, strict=True) if s]
    assert tokenizer.decode(marked) == "down<|end|>right<|end|>"


def test_a_warm_start_learns_and_writes_a_whole_checkpoint(base, plays, tmp_path):
    seen = []
    warm_start(
        base,
        plays,
        options=OPTIONS,
        directory_out=tmp_path / "warm",
        on_progress=lambda done, total, loss: seen.append((done, total, loss)),
    )
    assert [done for done, _, _ in seen] == list(range(1, seen[0][1] + 1))
    assert seen[-1][2] < 0.5 * seen[0][2]
    assert {file.name for file in (tmp_path / "warm").iterdir()} == {
        file.name for file in base.iterdir()
    }
    assert [file.name for file in tmp_path.iterdir()] == ["warm"]


def test_the_same_input_gives_the_same_weights(base, plays, tmp_path):
    for name in ("one", "two"):
        warm_start(
            base,
            plays[:10],
            options=OPTIONS,
            directory_out=tmp_path / name,
            on_progress=lambda done, total, loss: None,
        )
    one, two = (
        AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict()
        for name in ("one", "two")
    )
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_warm_start_that_is_interrupted_leaves_no_entry(base, plays, tmp_path):
    def interrupt(done, total, loss):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        warm_start(
            base,
            plays,
            options=OPTIONS,
            directory_out=tmp_path / "warm",
            on_progress=interrupt,
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "plays", [[], [Demonstration(tokens=(1, 2), sampled=(False, False))]], ids=["none", "silent"]
)
def test_nothing_to_learn_from_is_an_error(base, plays, tmp_path):
    with pytest.raises(ConfigError, match="the games to imitate contain no action"):
        warm_start(
            base,
            plays,
            options=OPTIONS,
            directory_out=tmp_path / "warm",
            on_progress=lambda done, total, loss: None,
        )
