"""Tiny random Hugging Face models and requests for the engine tests."""

import random

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rollart.inference.torch.engine import TorchEngine
from rollart.inference.torch.options import TorchEngineOptions
from rollart.types import Request, Sampling, TrajectoryId, Version

VOCAB = 61
_SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def make_model(kind: str, *, seed: int = 0) -> PreTrainedModel:
    """Return a random model; every parameter, norms and biases too, is random."""
    torch.manual_seed(seed)
    match kind:
        case "llama":
            model = LlamaForCausalLM(LlamaConfig(**_SHAPE))
        case "llama3-rope":
            model = LlamaForCausalLM(
                LlamaConfig(**_SHAPE, rope_parameters=_LLAMA3, tie_word_embeddings=True)
            )
        case "llama-bias":
            model = LlamaForCausalLM(LlamaConfig(**_SHAPE, attention_bias=True, mlp_bias=True))
        case "qwen2":
            model = Qwen2ForCausalLM(Qwen2Config(**_SHAPE))
        case "qwen2-tied":
            model = Qwen2ForCausalLM(Qwen2Config(**_SHAPE, tie_word_embeddings=True))
        case "qwen3":
            model = Qwen3ForCausalLM(Qwen3Config(**_SHAPE, head_dim=16))
        case "qwen3-tied":
            model = Qwen3ForCausalLM(Qwen3Config(**_SHAPE, head_dim=8, tie_word_embeddings=True))
        case "llama-linear":
            rope = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 3.0}
            model = LlamaForCausalLM(LlamaConfig(**_SHAPE, rope_parameters=rope))
        case "qwen2-dynamic":
            rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 3.0}
            model = Qwen2ForCausalLM(Qwen2Config(**_SHAPE, rope_parameters=rope))
        case "qwen3-yarn":
            rope = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0}
            rope["original_max_position_embeddings"] = 32
            model = Qwen3ForCausalLM(Qwen3Config(**_SHAPE, head_dim=16, rope_parameters=rope))
        case "qwen2-windowed" | "qwen3-windowed":
            window = {"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 1}
            if kind == "qwen2-windowed":
                model = Qwen2ForCausalLM(Qwen2Config(**_SHAPE, **window))
            else:
                model = Qwen3ForCausalLM(Qwen3Config(**_SHAPE, head_dim=16, **window))
        case "qwen3-bias":
            model = Qwen3ForCausalLM(Qwen3Config(**_SHAPE, head_dim=16, attention_bias=True))
        case _:
            raise ValueError(kind)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name:
                parameter.uniform_(0.5, 1.5)
            elif name.endswith("bias"):
                parameter.uniform_(-0.5, 0.5)
    return model.eval()


KINDS = (
    *("llama", "llama3-rope", "llama-bias", "llama-linear"),
    *("qwen2", "qwen2-tied", "qwen2-dynamic", "qwen2-windowed"),
    *("qwen3", "qwen3-tied", "qwen3-yarn", "qwen3-windowed", "qwen3-bias"),
)


def make_engine(model: PreTrainedModel, *, version: int = 0, **options: object) -> TorchEngine:
    """Return an engine of a model's weights."""
    chosen = {"rows": 8, "cached_sessions": 8, "max_length": 256} | options
    return TorchEngine(
        model_config=model.config.to_dict(),
        weights=weights_of(model),
        options=TorchEngineOptions(**chosen),
        version=Version(version),
    )


def weights_of(model: PreTrainedModel) -> dict[str, object]:
    """Return a model's weights as numpy arrays by name."""
    return {name: tensor.numpy().copy() for name, tensor in model.state_dict().items()}


def make_request(
    session: int, tokens: tuple[int, ...], *, turn: int = 0, seed: int | None = None, **sampling
) -> Request:
    """Return a request that stops at token 0."""
    return Request(
        session=TrajectoryId(session),
        turn=turn,
        domain="test",
        tokens=tokens,
        sampling=Sampling(**({"max_tokens": 8} | sampling)),
        stop=(0,),
        seed=session * 1000 + turn if seed is None else seed,
    )


def make_tokens(count: int, *, seed: int) -> tuple[int, ...]:
    """Return random token ids."""
    draw = random.Random(seed)
    return tuple(draw.randrange(1, VOCAB) for _ in range(count))


def forced_logprobs(
    model: PreTrainedModel, prompt: tuple[int, ...], completion: tuple[int, ...]
) -> list[float]:
    """Return the log-probs the model itself gives a completion, in one pass."""
    if not completion:
        return []
    with torch.no_grad():
        logits = model(torch.tensor([prompt + completion])).logits[0]
    rows = logits[len(prompt) - 1 : -1].log_softmax(-1)
    return rows.gather(1, torch.tensor(completion).unsqueeze(1)).view(-1).tolist()
