import math
from pathlib import Path

import numpy as np
import pytest
import torch
from training_samples import VOCABULARY, random_groups
from transformers import AutoModelForCausalLM as Auto
from transformers import (
    BloomConfig,
    CohereConfig,
    Gemma2Config,
    GPT2Config,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from rollart.errors import ConfigError, ModelError
from rollart.inference.torch.sampler import sample
from rollart.training.batch import Batch, decode, encode
from rollart.training.model import TokenFilters, block_mask, is_packable, load_model, score
from rollart.training.packing import lay_out

SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
CONFIGS = {
    "qwen3": Qwen3Config(**SHAPE, tie_word_embeddings=False),
    "qwen3 tied": Qwen3Config(**SHAPE, tie_word_embeddings=True),
    "qwen2": Qwen2Config(**SHAPE),
    "llama": LlamaConfig(**SHAPE),
    "windowed": MistralConfig(**SHAPE, sliding_window=5),
    "capped and mixed": Gemma2Config(**SHAPE, sliding_window=5, final_logit_softcapping=2.0),
    "scaled": CohereConfig(**SHAPE, logit_scale=0.3),
    "gpt2": GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=2, n_head=2),
    "without positions": BloomConfig(vocab_size=VOCABULARY, hidden_size=16, n_layer=2, n_head=2),
    "recurrent": MambaConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, initializer_range=0.3
    ),
}


def make_model(name: str):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Auto.from_config(CONFIGS[name]).eval()


def one_by_one(model, batch: Batch, temperature: float) -> tuple[list[float], list[float]]:
    """Log-probs and entropies by the model's plain forward, a sequence at a time, in order."""
    logprobs, entropies = [], []
    for start, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        ids = torch.from_numpy(batch.tokens[start:end].astype(np.int64))[None]
        logits = model(input_ids=ids, use_cache=False).logits[0].double() / temperature
        for at in np.flatnonzero(batch.sampled[start:end]):
            row = logits[at - 1]
            total = math.log(sum(math.exp(value) for value in row.tolist()))
            logprobs.append(float(row[ids[0, at]]) - total)
            entropies.append(-sum(math.exp(v - total) * (v - total) for v in row.tolist()))
    return logprobs, entropies


def packed(model, batch: Batch, *, temperature: float, row_tokens: int, **limits: int):
    micros = lay_out(batch, range(len(batch.rewards)), row_tokens=row_tokens, **limits)
    logprobs, entropies = np.zeros(len(batch.tokens)), np.zeros(len(batch.tokens))
    for micro in micros:
        scores = score(
            model,
            micro,
            targets=torch.from_numpy(batch.tokens[micro.places].astype(np.int64)),
            temperatures=torch.full((len(micro.places),), temperature),
            entropy_grad=False,
        )
        logprobs[micro.places] = scores.logprobs.detach()
        entropies[micro.places] = scores.entropies.detach()
    return logprobs[batch.sampled], entropies[batch.sampled], micros


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.filterwarnings("ignore:::transformers")
def test_packed_scores_are_those_of_each_sequence_alone(name):
    model, batch = make_model(name), decode(encode(random_groups(3)))
    assert is_packable(model) == (name not in ("without positions", "recurrent"))
    rows = (0, 1, 45, 200) if is_packable(model) else (1,)
    with torch.no_grad():
        expected = one_by_one(model, batch, 0.7)
        for row_tokens in rows:
            *found, micros = packed(
                model, batch, temperature=0.7, row_tokens=row_tokens, micro_batch_tokens=120
            )
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
            assert any(micro.is_packed for micro in micros) == (row_tokens in (45, 200, 0))


FILTERS = [
    (0.7, 0.5, 0, 0.0),
    (1.0, 0.95, 0, 0.0),
    (1.3, 1.0, 7, 0.0),
    (1.0, 1.0, 0, 0.2),
    (0.9, 0.8, 12, 0.05),
    (1.0, 1.0, 0, 0.0),
]
"""Temperature, top_p, top_k, min_p."""


def as_tensors(rows: list[tuple[float, float, int, float]]) -> TokenFilters:
    _, top_p, top_k, min_p = (torch.tensor(each) for each in zip(*rows, strict=True))
    return TokenFilters(top_p=top_p.double(), top_k=top_k, min_p=min_p)


@pytest.mark.parametrize("number", range(len(FILTERS)))
def test_what_is_cut_off_is_what_the_sampler_cuts_off(number):
    generator = torch.Generator().manual_seed(number)
    logits = torch.randn(400, VOCABULARY, generator=generator) * 2
    rows = [FILTERS[number]] * 200 + [FILTERS[index % len(FILTERS)] for index in range(200)]
    places = torch.rand(400, generator=generator).tolist()
    tokens, drawn = sample(logits, rows, places)
    temperatures = torch.tensor([row[0] for row in rows]).unsqueeze(-1)
    logprobs = torch.log_softmax(logits / temperatures, -1)
    found = as_tensors(rows).apply(logprobs, torch.tensor(tokens))
    np.testing.assert_allclose(
        found.gather(1, torch.tensor(tokens)[:, None])[:, 0], drawn, atol=1e-5
    )
    np.testing.assert_allclose(found.exp().sum(-1), 1, atol=1e-5)


def test_a_token_that_the_present_policy_cuts_off_keeps_a_small_probability():
    logprobs = torch.tensor([[0.6, 0.3, 0.1]]).log()
    filters = as_tensors([(1.0, 0.7, 0, 0.0)])
    found = filters.apply(logprobs, torch.tensor([2])).exp()
    np.testing.assert_allclose(found, [[0.6, 0.3, 0.1]], atol=1e-6)
    found = filters.apply(logprobs, torch.tensor([1])).exp()
    np.testing.assert_allclose(found, [[2 / 3, 1 / 3, 0.0]], atol=1e-6)


def test_scores_of_a_truncated_policy_have_its_gradients_and_entropy():
    batch, model = decode(encode(random_groups(4))), make_model("qwen3")
    (micro,) = lay_out(batch, range(12), row_tokens=0, micro_batch_tokens=10_000)
    targets = torch.from_numpy(batch.tokens[micro.places].astype(np.int64))
    count = len(targets)
    scores = score(
        model,
        micro,
        targets=targets,
        temperatures=torch.ones(count),
        entropy_grad=True,
        filters=as_tensors([(1.0, 0.6, 0, 0.0)] * count),
    )
    (scores.logprobs.sum() + 0.5 * scores.entropies.sum()).backward()
    found = {name: value.grad.clone() for name, value in model.named_parameters()}
    model.zero_grad()
    total, entropies = torch.zeros(()), []
    for start, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        ids = torch.from_numpy(batch.tokens[start:end].astype(np.int64))
        chances = model(input_ids=ids[None]).logits[0].softmax(-1)
        for at in np.flatnonzero(batch.sampled[start:end]):
            row = chances[at - 1]
            ranked = row.sort(descending=True).indices.tolist()
            kept, mass = [], 0.0
            for token in ranked:
                if mass < 0.6:
                    kept.append(token)
                    mass += float(row[token].detach())
            left = row[sorted({*kept, int(ids[at])})]
            left = left / left.sum()
            total = total + (row[ids[at]] / row[sorted({*kept, int(ids[at])})].sum()).log()
            total = total - 0.5 * (left * left.log()).sum()
            entropies.append(-float((left * left.log()).sum().detach()))
    total.backward()
    np.testing.assert_allclose(sorted(scores.entropies.tolist()), sorted(entropies), atol=1e-4)
    for name, value in model.named_parameters():
        np.testing.assert_allclose(found[name], value.grad, rtol=0, atol=2e-4)


def test_gradients_are_those_of_the_plain_forward():
    batch = decode(encode(random_groups(4)))
    model = make_model("qwen3")
    (micro,) = lay_out(batch, range(12), row_tokens=0, micro_batch_tokens=10_000)
    targets = torch.from_numpy(batch.tokens[micro.places].astype(np.int64))
    ones = torch.ones(len(targets))
    scores = score(model, micro, targets=targets, temperatures=ones, entropy_grad=True)
    (scores.logprobs.sum() + 0.5 * scores.entropies.sum()).backward()
    found = {name: value.grad.clone() for name, value in model.named_parameters()}
    model.zero_grad()
    total = torch.zeros(())
    for start, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        ids = torch.from_numpy(batch.tokens[start:end].astype(np.int64))
        logp = model(input_ids=ids[None]).logits[0].log_softmax(-1)
        for at in np.flatnonzero(batch.sampled[start:end]):
            row = logp[at - 1]
            total = total + row[ids[at]] - 0.5 * (row.exp() * row).sum()
    total.backward()
    for name, value in model.named_parameters():
        torch.testing.assert_close(found[name], value.grad, rtol=1e-4, atol=1e-4)


def test_a_position_attends_to_its_own_segment_s_past_only():
    visible = block_mask(torch.tensor([[0, 0, 1, 2]]), dtype=torch.float32) == 0
    assert visible[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]


def test_a_directory_without_a_model_is_refused(tmp_path: Path):
    with pytest.raises(ModelError, match=f"cannot load a model from {tmp_path}"):
        load_model(str(tmp_path), dtype="float32", device="cpu")


def test_a_checkpoint_that_lacks_weights_is_refused_not_filled_at_random(checkpoint, tmp_path):
    model = Auto.from_pretrained(checkpoint)
    weights = model.state_dict()
    del weights["model.norm.weight"]
    model.save_pretrained(tmp_path, state_dict=weights)
    with pytest.raises(ModelError, match=r"missing_keys: model\.norm\.weight"):
        load_model(str(tmp_path), dtype="float32", device="cpu")


def test_an_absent_device_is_a_config_error(checkpoint):
    with pytest.raises(ConfigError, match=r"training\.device"):
        load_model(str(checkpoint), dtype="float32", device="cuda:9")
