"""Faults that the guard must catch by itself: each with the check that prevents it turned off.

A fault is what once happened: the engine is given what it used to read, the trainer what it reads.
Each function plays with the engine and returns whether the guard stops the trainer's step.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from warnings import catch_warnings, simplefilter

import torch
from transformers import AfmoeConfig, AutoModelForCausalLM, GptOssConfig

from benchmarks.fidelity_parts.matrix import (
    LLAMA3,
    ROPES,
    SHAPE,
    THETA,
    VOCABULARY,
    Case,
    edit_config,
)
from benchmarks.fidelity_parts.play import (
    ENGINE,
    is_caught,
    open_trainer,
    play,
    relabelled,
    trajectory_of,
    update,
)
from rollart.inference.torch.engine import TorchEngine
from rollart.models.architecture import resolve_config
from rollart.models.files import without_checks
from rollart.models.loader import load_weights
from rollart.types import Request, Sampling, Trajectory, TrajectoryId, Turn, Version

Fault = Callable[[Path], bool]


def faults() -> dict[str, Fault]:
    """Return the faults by name."""
    return {
        "two rope entries, linear": _read_otherwise(
            {"rope_scaling": ROPES["linear"]}, {"rope_scaling": ...}
        ),
        "two rope entries, llama3": _read_otherwise(
            {"rope_scaling": ROPES["llama3"]}, {"rope_scaling": ...}
        ),
        "original positions on top": _read_otherwise(
            {"rope_parameters": THETA | LLAMA3, "original_max_position_embeddings": 32},
            {"original_max_position_embeddings": ...},
        ),
        "YaRN ignored": _read_otherwise(
            {"rope_parameters": THETA | ROPES["yarn"]}, {"rope_parameters": THETA}
        ),
        "window ignored": _read_otherwise(
            {"use_sliding_window": True, "sliding_window": 8, "layer_types": ...}
            | {"max_window_layers": 0},
            {"use_sliding_window": False},
        ),
        "tied, two matrices": _tied_with_two,
        "biases unannounced": _biases,
        "adapter on a tied head": _adapter_on_head,
        "prefixes of older weights": _older_prefixes,
        "packed gpt_oss": _leak(GptOssConfig, num_local_experts=2, num_experts_per_tok=1),
        "packed afmoe": _leak(
            AfmoeConfig,
            num_experts=2,
            num_experts_per_tok=1,
            moe_intermediate_size=8,
            num_dense_layers=1,
        ),
        "updates lost in bfloat16": _lost_updates,
    }


def _open(model: Path, config: Mapping[str, Any] | Any = None) -> TorchEngine:
    return TorchEngine(
        model_config=resolve_config(model) if config is None else config,
        weights=load_weights(model),
        options=ENGINE,
        version=Version(0),
    )


def _read_otherwise(edits: Mapping[str, Any], engine_edits: Mapping[str, Any]) -> Fault:
    """Return a fault in which the engine reads another config than the trainer."""

    def run(directory: Path) -> bool:
        model = Case(name="read otherwise", family="qwen3", edits=edits).write(directory)
        trainer = open_trainer(model)
        edit_config(model, engine_edits)
        return is_caught(trainer, play(_open(model), sessions=range(6)))

    return run


def _tied_with_two(directory: Path) -> bool:
    def differ(tensors: dict[str, torch.Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].flip(0).contiguous()

    shape = {"tie_word_embeddings": True}
    model = Case(name="two", family="llama", shape=shape, retouch=differ).write(directory)
    with without_checks("tensors"):
        return is_caught(open_trainer(model), play(_open(model), sessions=range(6)))


def _biases(directory: Path) -> bool:
    model = Case(name="bias", family="llama", shape={"attention_bias": True}).write(directory)
    engine = _open(model)
    edit_config(model, {"attention_bias": False})
    with without_checks("tensors"):
        return is_caught(open_trainer(model), play(engine, sessions=range(6)))


def _adapter_on_head(directory: Path) -> bool:
    shape = {"tie_word_embeddings": True}
    model = Case(name="adapter", family="qwen3", shape=shape).write(directory)
    engine = _open(model)
    with without_checks("adapters", "tensors"), catch_warnings():
        simplefilter("ignore")  # peft warns of this too
        trainer = open_trainer(model, lora=("q_proj", "lm_head"))
        if is_caught(trainer, play(engine, sessions=range(6))):
            return False  # adapters start as nothing: an alarm here would be a false one
        update(engine, trainer)
        return is_caught(trainer, play(engine, sessions=range(6, 12)))


def _older_prefixes(directory: Path) -> bool:
    """Sessions born after updates copy a prompt that an idle row has held since version 0."""
    model = Case(name="prefixes", family="qwen3").write(directory)
    engine, trainer = _open(model), open_trainer(model)
    with without_checks("prefixes"):
        for version in range(4):
            played = [_ask(engine, 10 * version + each) for each in range(4)]
            if is_caught(trainer, played):
                return version > 0
            update(engine, trainer, keep_kv=True)
    return False


def _ask(engine: TorchEngine, session: int) -> Trajectory:
    prompt = tuple(1 + (7 * place) % (VOCABULARY - 1) for place in range(48))
    sampling = Sampling(max_tokens=12)
    engine.add(
        Request(
            session=TrajectoryId(session),
            turn=0,
            domain="matrix",
            tokens=prompt,
            sampling=sampling,
            stop=(),
            seed=session,
        )
    )
    (done,) = [each for _ in iter(lambda: engine.busy, False) for each in engine.step()]
    turn = Turn(
        prompt_tokens=prompt,
        tokens=done.tokens,
        logprobs=done.logprobs,
        versions=done.versions,
        observation="",
        action="",
        reward=0.0,
    )
    return trajectory_of(session, [turn])


def _leak(config_class: Any, **extra: Any) -> Fault:
    """Return a fault in which sequences of one row see each other in the trainer."""

    def run(directory: Path) -> bool:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            config = config_class(**{**SHAPE, **extra, "sliding_window": 16})
            AutoModelForCausalLM.from_config(config).save_pretrained(directory)
        whole = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
        played = [_recorded(whole, number) for number in range(8)]
        if is_caught(open_trainer(directory), played):
            return False  # with the check on it is not packed, and right
        with without_checks("packing"):
            return is_caught(open_trainer(directory), played)

    return run


@torch.no_grad()
def _recorded(model: Any, number: int) -> Trajectory:
    """Return a random conversation with the log-probs that a model alone gives it."""
    draw = torch.Generator().manual_seed(number)
    tokens = torch.randint(1, VOCABULARY, (1, 12 + 30 * (number == 0)), generator=draw)
    rows = model(tokens, use_cache=False).logits[0].log_softmax(-1)
    ids = tokens[0].tolist()
    turn = Turn(
        prompt_tokens=tuple(ids[:4]),
        tokens=tuple(ids[4:]),
        logprobs=(0.0,) * (len(ids) - 4),
        versions=(Version(0),) * (len(ids) - 4),
        observation="",
        action="",
        reward=0.0,
    )
    own = [float(rows[place - 1, ids[place]]) for place in range(4, len(ids))]
    return relabelled(trajectory_of(number, [turn]), [own])


def _lost_updates(directory: Path) -> bool:
    model = Case(name="lost", family="qwen3").write(directory)
    played = play(_open(model), sessions=range(6))
    options: dict[str, Any] = {"dtype": "bfloat16", "learning_rate": 1e-6}
    trainer = open_trainer(model, **options)
    try:
        if is_caught(trainer, played):
            return False
    finally:
        trainer.close()
    with without_checks("master_weights"):
        return is_caught(open_trainer(model, **options), played)
