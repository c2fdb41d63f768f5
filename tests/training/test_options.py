import json

import pytest

from rollart.errors import ConfigError
from rollart.training.algorithms.grpo import Grpo
from rollart.training.algorithms.rloo import Rloo
from rollart.training.options import (
    LoraOptions,
    TrainingOptions,
    read_algorithm,
    trainer_arguments,
)


def test_the_defaults_are_valid_and_betas_from_json_become_a_tuple():
    assert TrainingOptions(betas=[0.9, 0.99]) == TrainingOptions(betas=(0.9, 0.99))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value", "fix"),
    [
        ("dtype", "float16", "must be one of float32, bfloat16"),
        ("device", "", "must name a torch device: cpu, cuda"),
        ("learning_rate", 0.0, "must be more than 0"),
        ("eps", float("nan"), "must be a finite number"),
        ("weight_decay", -0.1, "must be at least 0"),
        ("max_grad_norm", float("inf"), "must be a finite number"),
        ("epochs", 0, "must be at least 1"),
        ("minibatches", 0, "must be at least 1"),
        ("micro_batch_tokens", 0, "must be at least 1"),
        ("threads", 0, "must be at least 1"),
        ("ranks", 0, "must be at least 1"),
        ("timeout_s", 0.0, "must be more than 0"),
        ("warmup_steps", -1, "must be at least 0"),
        ("decay_steps", -1, "must be at least 0 (0: until run.steps)"),
        ("min_lr_ratio", 1.5, "must lie between 0 and 1"),
        ("lr_scheduler_type", "step", "must be one of constant, linear, cosine"),
        ("row_tokens", -1, "must be at least 0"),
        ("seed", -1, "must be at least 0"),
        ("betas", (0.9, 1.0), "must be two numbers in [0, 1)"),
    ],
)
def test_a_wrong_value_is_refused_with_its_field_and_fix(field: str, value: object, fix: str):
    with pytest.raises(ConfigError) as caught:
        TrainingOptions(**{field: value})  # type: ignore[arg-type]
    assert str(caught.value) == f"training.{field} = {value!r}: {fix}"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, [1.0] * 7),
        ({"warmup_steps": 4}, [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0]),
        (
            {"lr_scheduler_type": "linear", "warmup_steps": 2, "decay_steps": 6},
            [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0],
        ),
        (
            {"lr_scheduler_type": "linear", "decay_steps": 4, "min_lr_ratio": 0.2},
            [1.0, 0.8, 0.6, 0.4, 0.2, 0.2, 0.2],
        ),
        (
            {"lr_scheduler_type": "cosine", "decay_steps": 4, "min_lr_ratio": 0.5},
            [1.0, 0.9268, 0.75, 0.5732, 0.5, 0.5, 0.5],
        ),
        ({"lr_scheduler_type": "cosine", "warmup_steps": 9, "decay_steps": 5}, [1 / 9, 2 / 9]),
    ],
)
def test_the_learning_rate_rises_and_then_falls_as_the_schedule_says(values, expected):
    options = TrainingOptions(learning_rate=1.0, **values)
    found = [options.learning_rate_at(step + 1) for step in range(len(expected))]
    assert found == pytest.approx(expected, abs=1e-4)


def test_a_run_says_by_which_step_the_learning_rate_has_fallen():
    options = TrainingOptions(lr_scheduler_type="linear")
    with pytest.raises(ConfigError, match=r"training\.decay_steps = 0: outside a run, say by"):
        options.learning_rate_at(1)
    arguments = trainer_arguments(options, Grpo(), run_steps=40)
    assert TrainingOptions.read(arguments["options"]).decay_steps == 40
    given = trainer_arguments(TrainingOptions(decay_steps=7), Grpo(), run_steps=40)
    assert TrainingOptions.read(given["options"]).decay_steps == 7


@pytest.mark.parametrize(
    ("field", "value", "fix"),
    [
        ("rank", -1, "must be at least 0 (0: no adapter)"),
        ("alpha", 0.0, "must be more than 0"),
        ("targets", (), "name at least one linear layer"),
        ("dropout", 1.0, "must be from 0 to below 1"),
    ],
)
def test_a_wrong_adapter_is_refused_with_its_field_and_fix(field: str, value: object, fix: str):
    with pytest.raises(ConfigError) as caught:
        LoraOptions(**{field: value})  # type: ignore[arg-type]
    assert str(caught.value) == f"training.lora.{field} = {value!r}: {fix}"


def test_options_are_read_from_json_with_their_adapters():
    read = TrainingOptions.read({"ranks": 2, "lora": {"rank": 4, "targets": ["q_proj"]}})
    assert read == TrainingOptions(ranks=2, lora=LoraOptions(rank=4, targets=("q_proj",)))
    assert [read.is_sharded, TrainingOptions().is_sharded] == [True, False]
    with pytest.raises(ConfigError, match=r"training\.lora\.rnk = 4: is not an option"):
        TrainingOptions.read({"lora": {"rnk": 4}})


def test_an_algorithm_travels_as_its_type_and_fields():
    arguments = trainer_arguments(TrainingOptions(ranks=2), Rloo(clip_low=0.1))
    assert json.loads(json.dumps(arguments)) == arguments
    assert arguments["options"]["ranks"] == 2
    assert read_algorithm(arguments["algorithm"]) == Rloo(clip_low=0.1)
    assert read_algorithm({}) == Grpo()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"type": "rlo"},
            r"algorithm\.type = 'rlo': no such algorithm; did you mean rloo\? Shipped: grpo, ",
        ),
        ({"clip": 1}, r"algorithm\.clip = 1: is not an option of the trainer"),
        ({"clip_low": 2.0}, r"algorithm\.clip_low = 2\.0: must lie between 0 and 1"),
        (
            {"type": "rollart.training.options:LoraOptions"},
            "LoraOptions has no needs, advantages, token_weights, loss; see rollart.Algorithm",
        ),
    ],
)
def test_a_wrong_algorithm_is_refused_by_name(values, message):
    with pytest.raises(ConfigError, match=message):
        read_algorithm(values)
