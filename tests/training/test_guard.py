"""The guard: which tokens are compared, how they are judged, and what a run gets to see."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import make_engine, make_model, make_request, make_tokens, weights_of
from training_samples import make_trajectory, make_turn

from rollart.errors import GuardError
from rollart.inference.torch.engine import TorchEngine
from rollart.models.files import without_checks
from rollart.training.batch import decode, encode
from rollart.training.guard import EngineSampling, Gap, Guard, comparable
from rollart.training.options import TrainingOptions
from rollart.training.trainer import TorchTrainer
from rollart.types import Trajectory, Version
from rollart.weights.store import MemoryStore

GUARD = ("guard_gap", "guard_gap_max", "guard_tokens", "guard_version", "guard_exceeded")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    make_model("qwen3").save_pretrained(tmp_path)
    return tmp_path


def open_engine(*, version: int = 0, seed: int = 0) -> TorchEngine:
    return make_engine(make_model("qwen3", seed=seed), version=version)


def open_trainer(model: Path, *, engine: dict | None = None, **options) -> TorchTrainer:
    return TorchTrainer(
        model=str(model),
        options={"learning_rate": 1e-2, **options},
        algorithm={"type": "reinforce"},
        engine=engine or {},
        store=MemoryStore(),
    )


def play(engine: TorchEngine, *, first: int = 0, **sampling) -> list[Trajectory]:
    """Play eight conversations of one turn, of several lengths."""
    prompts = {first + each: make_tokens(5 + 9 * each, seed=each) for each in range(8)}
    for session, prompt in prompts.items():
        request = make_request(session, prompt, **({"max_tokens": 10} | sampling))
        engine.add(replace(request, stop=()))
    done = [each for _ in iter(lambda: engine.busy, False) for each in engine.step()]
    return [
        make_trajectory(
            id=int(each.session),
            group=0,
            reward=float(each.session % 2) - 0.5,
            turns=[
                make_turn(
                    list(prompts[int(each.session)]),
                    list(each.tokens),
                    list(each.logprobs),
                    list(each.versions),
                )
            ],
        )
        for each in done
    ]


def shifted(played: list[Trajectory], by: float) -> dict:
    batch = encode([played])
    batch["logprobs"][batch["sampled"]] -= np.float32(by)
    return batch


def test_tokens_of_turns_that_several_versions_drew_are_not_compared():
    turns = [
        make_turn([1, 2], [3, 4], [-1.0, -1.0], [4, 5]),
        make_turn([5], [6, 7], [-1.0, -1.0], [5, 5]),
        make_turn([8], [9], [-1.0], [6]),
    ]
    batch = decode(encode([[make_trajectory(id=1, group=0, reward=0.0, turns=turns)]]))
    assert np.flatnonzero(comparable(batch, 5)).tolist() == [5, 6]
    assert np.flatnonzero(comparable(batch, 6)).tolist() == [8]
    assert not comparable(batch, 7).any()


def test_many_tokens_are_chosen_at_first_and_a_sample_later_with_the_longest_always():
    members = [
        make_trajectory(
            id=number,
            group=0,
            reward=0.0,
            turns=[make_turn([1] * (700 if number == 7 else 150), [2], [-1.0], [3])],
        )
        for number in range(40)
    ]
    batch = decode(encode([members]))
    guard = Guard(TrainingOptions(), EngineSampling())
    first = guard.choose(batch, version=3)
    assert 7 in first and 20 < len(first) < 30
    scores = np.full(len(batch.tokens), -1.0, np.float32)
    gap = guard.compare(batch, scores, sequences=first, version=3)
    assert (gap.tokens, gap.largest) == (len(first), 0.0)
    assert guard.choose(batch, version=3).tolist() == [7]
    assert len(guard.choose(batch, version=4)) == 0


def test_what_rounding_explains_depends_on_the_coarser_side():
    fine, coarse = TrainingOptions(), TrainingOptions(mixed_precision=True)
    assert Guard(fine, EngineSampling()).tolerance == 1e-3
    assert Guard(fine, EngineSampling(dtype="bfloat16")).tolerance == 0.05
    assert Guard(coarse, EngineSampling()).dtype == "bfloat16"
    assert Guard(TrainingOptions(guard_tolerance=0.2), EngineSampling()).tolerance == 0.2
    gap = Gap(version=1, tokens=9, mean=5e-4, largest=5e-3, tolerance=1e-3, dtype="float32")
    assert not gap.is_exceeded
    assert replace(gap, mean=2e-3).is_exceeded
    assert replace(gap, largest=2e-2).is_exceeded
    assert replace(gap, mean=float("nan")).is_exceeded


def test_an_engine_that_agrees_is_let_through_step_after_step(model: Path):
    engine, trainer = open_engine(), open_trainer(model)
    for step in range(4):
        metrics = trainer.step(encode([play(engine, first=10 * step)])).metrics
        assert metrics["guard_version"] == step
        assert metrics["guard_gap_max"] < 1e-4
        assert metrics["guard_tokens"] == 80
        assert (metrics["guard_exceeded"], metrics["updates_lost"]) == (0.0, 0.0)
        assert metrics["weights_moved"] > 0.99
        engine.update(trainer.publish(), trainer._store.fetch(trainer.version), keep_kv=False)


def test_an_engine_that_disagrees_stops_the_step_before_anything_moves(model: Path):
    trainer = open_trainer(model)
    before = {name: value.clone() for name, value in trainer._model.state_dict().items()}
    with pytest.raises(GuardError) as caught:
        trainer.step(encode([play(open_engine(seed=1))]))
    said = str(caught.value)
    assert "over 80 tokens sampled by version 0" in said
    assert "nats from the engine's on average" in said
    assert "float32 explains 0.001 and 0.01" in said
    assert "Usual causes: engine and trainer read config.json" in said
    assert 'training.guard = "warn"' in said
    assert trainer.version == 0
    for name, value in trainer._model.state_dict().items():
        assert torch.equal(value, before[name])


def test_a_gap_may_be_warned_of_or_accepted_or_ignored(model: Path):
    batch = shifted(play(open_engine()), 0.3)
    metrics = open_trainer(model, guard="warn").step(batch).metrics
    assert metrics["guard_exceeded"] == 1.0
    assert metrics["guard_gap"] == pytest.approx(0.3, abs=1e-4)
    warning = Guard(TrainingOptions(guard="warn"), EngineSampling()).warnings_of(metrics)
    assert list(warning) == ["gap"] and "0.3 nats" in warning["gap"]
    metrics = open_trainer(model, guard_tolerance=0.5).step(batch).metrics
    assert metrics["guard_exceeded"] == 0.0
    for trainer in (open_trainer(model, guard="off"), TorchTrainer(model=str(model))):
        assert not set(GUARD) & set(trainer.step(batch).metrics)


@pytest.mark.parametrize(
    ("sampling", "temperature"),
    [
        ({"top_p": 0.6}, 1.0),
        ({"top_k": 5}, 0.7),
        ({"min_p": 0.2}, 1.3),
        ({"top_p": 0.8, "top_k": 12, "min_p": 0.05}, 0.9),
    ],
)
def test_truncated_draws_are_compared_as_they_were_drawn(model: Path, sampling, temperature):
    played = play(open_engine(), temperature=temperature, **sampling)
    batch = encode([played], temperature=temperature, **sampling)
    metrics = open_trainer(model).step(batch).metrics
    assert metrics["guard_gap_max"] < 2e-4
    with pytest.raises(GuardError):
        open_trainer(model).step(encode([played], temperature=temperature))


def test_where_batches_are_older_a_version_is_kept_and_compared_later(model: Path):
    engine, trainer = open_engine(), open_trainer(model)
    old = encode([play(engine)])
    trainer.step(old)
    assert "guard_gap" not in trainer.step(old).metrics
    engine.update(trainer.publish(), trainer._store.fetch(trainer.version), keep_kv=False)
    of_two = play(engine, first=20)
    assert "guard_gap" not in trainer.step(old).metrics
    before = {name: value.clone() for name, value in trainer._model.state_dict().items()}
    found = trainer._compare(*columns_of(trainer, encode([of_two])))
    assert (found["guard_version"], found["guard_exceeded"]) == (2.0, 0.0)
    assert found["guard_gap_max"] < 1e-4
    for name, value in trainer._model.state_dict().items():
        assert torch.equal(value, before[name])


def columns_of(trainer: TorchTrainer, arrays):
    from rollart.training.losses import Columns

    batch = decode(arrays)
    return batch, Columns.of(batch, version=trainer.version, device="cpu")


def test_a_kept_version_that_disagrees_stops_the_run(model: Path):
    engine, trainer = open_engine(), open_trainer(model)
    old = encode([play(engine)])
    trainer.step(old)
    trainer.step(old)
    trainer.step(old)
    engine.update(Version(2), weights_of(make_model("qwen3", seed=1)), keep_kv=False)
    with pytest.raises(GuardError, match="sampled by version 2"):
        trainer.step(encode([play(engine, first=20)]))


def test_updates_that_rounding_undoes_stop_the_run(model: Path):
    batch = encode([play(open_engine())])
    with without_checks("master_weights"):
        trainer = open_trainer(model, dtype="bfloat16", learning_rate=1e-6)
        with pytest.raises(GuardError, match=r"moved \d\.\d% of the weights.*lost in rounding"):
            trainer.step(batch)
        trainer = open_trainer(model, dtype="bfloat16", learning_rate=1e-6, guard="warn")
        metrics = trainer.step(batch).metrics
    assert metrics["updates_lost"] == 1.0 and metrics["weights_moved"] < 0.1
    options = TrainingOptions(dtype="bfloat16", learning_rate=1e-6, guard="warn")
    assert list(Guard(options, EngineSampling()).warnings_of(metrics)) == ["updates"]


def test_a_warm_up_may_move_little(model: Path):
    trainer = open_trainer(model, learning_rate=1e-9, warmup_steps=10)
    assert trainer.step(encode([play(open_engine())])).metrics["updates_lost"] == 0.0
