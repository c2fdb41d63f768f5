"""Evaluation of a checkpoint: what is wrong with the config or the weights is one clear error."""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from rollart.checkpoints.save import checkpoints
from rollart.errors import ConfigError, ModelError
from rollart.pipelines.agentic import train
from rollart.pipelines.evaluation import evaluate


@pytest.fixture(scope="module")
def trained(small, runs) -> Path:
    """A run of one step."""
    assert train(small("trained", "run.steps=1")) == 0
    return runs / "trained"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("env=pond", "tasks.letters.env = 'pond': "),
        ("options.dataset_name=x", "tasks.letters.options.dataset_name = 'x': "),
    ],
)
def test_a_name_that_is_not_there_is_told_by_its_key_in_the_config(trained, override, said):
    with pytest.raises(ConfigError) as caught:
        evaluate(trained, [f"tasks.letters.{override}"], 2, None)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("temperature", [None, 0.0])
def test_weights_that_are_no_numbers_are_told_of(trained, tmp_path, temperature):
    damaged = tmp_path / "damaged"
    shutil.copytree(trained, damaged)
    file = checkpoints(damaged / "checkpoints")[-1] / "model.safetensors"
    weights = load_file(file)
    weights["model.norm.weight"] = weights["model.norm.weight"] * float("nan")
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ModelError) as caught:
        evaluate(damaged, [], 4, temperature)
    assert str(caught.value) == (
        "the model's logits are not finite: its weights are damaged or diverged"
    )
