"""A reward model scores a group in batches, as the model itself would, one by one."""

import asyncio

import pytest
import torch
from rewarded import attempt, call
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForSequenceClassification

from rollart.errors import ConfigError
from rollart.models.tokenizer import build_tokenizer
from rollart.rewards.reward_model import reward_model
from rollart.rewards.scoring import score

TEXTS = ["question 0 four five six", "a tiny corpus of a few words"]


def build(directory, *, labels: int = 1):
    tokenizer = build_tokenizer(TEXTS)
    torch.manual_seed(3)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=16,
        num_labels=labels,
        pad_token_id=tokenizer.pad_token_id,
    )
    Qwen3ForSequenceClassification(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return str(directory)


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> str:
    return build(tmp_path_factory.mktemp("reward-model"))


def by_hand(path: str, answers: list[str], *, max_tokens: int = 2048) -> list[float]:
    """The logits of each text by itself, straight from the model."""
    model = Qwen3ForSequenceClassification.from_pretrained(path).eval()
    tokenizer = AutoTokenizer.from_pretrained(path)
    scores: list[float] = []
    for answer in answers:
        messages = [
            {"role": "user", "content": "question 0"},
            {"role": "assistant", "content": answer},
        ]
        text = tokenizer.apply_chat_template(messages, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"][-max_tokens:]
        with torch.inference_mode():
            scores.append(model(torch.tensor([ids])).logits[0, 0].item())
    return scores


ANSWERS = ["four", "", "five six " * 40, "漢字 é", "six"]


@pytest.mark.parametrize("batch", [1, 2, 8])
def test_batches_of_unlike_length_score_as_each_would_alone(path: str, batch: int):
    group = tuple(attempt(answer) for answer in ANSWERS)
    got = reward_model(group, path=path, batch=batch)
    assert [reward.value for reward in got] == pytest.approx(by_hand(path, ANSWERS), abs=1e-5)
    assert len({round(reward.value, 6) for reward in got}) == len(ANSWERS)


def test_the_same_attempt_scores_the_same_to_the_bit(path: str):
    group = (attempt("four"), attempt("five"))
    assert reward_model(group, path=path) == reward_model(group, path=path)


def test_of_what_is_too_long_the_end_is_read(path: str):
    (got,) = reward_model((attempt("five six " * 400),), path=path, max_tokens=16)
    (wanted,) = by_hand(path, ["five six " * 400], max_tokens=16)
    assert got.value == pytest.approx(wanted, abs=1e-5)


def test_squashed_scores_lie_between_0_and_1(path: str):
    (plain,) = reward_model((attempt("four"),), path=path)
    (squashed,) = reward_model((attempt("four"),), path=path, squash=True)
    assert squashed.value == pytest.approx(1 / (1 + torch.tensor(-plain.value).exp().item()))
    assert squashed.parts == {"score": plain.value}


def test_it_scores_a_group_through_a_call(path: str):
    group = (attempt("four"), attempt("five"))
    got = asyncio.run(score(call("reward_model", *group, is_group=True, path=path)))
    assert got == tuple(reward_model(group, path=path))


def test_what_is_no_reward_model_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"reward.options.path = .*: must be a directory with"):
        reward_model((attempt("a"),), path=str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="has 3 outputs; a reward model has one"):
        reward_model((attempt("a"),), path=build(tmp_path, labels=3))
    with pytest.raises(ConfigError, match=r"reward.options.batch = 0: must be at least 1"):
        reward_model((attempt("a"),), path="x", batch=0)
