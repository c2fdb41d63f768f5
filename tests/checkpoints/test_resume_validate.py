"""Checkpoints that something happened to."""

import json
import os
import shutil
from pathlib import Path

import pytest

from rollart.errors import DamagedError
from rollart.models.tiny import build_tiny
from rollart.models.tokenizer import load_tokenizer
from rollart.observe.run_directory import lock_directory
from rollart.pipelines.agentic import train
from rollart.pipelines.evaluation import evaluate


@pytest.fixture(scope="module")
def kept(small, runs) -> Path:
    """A run of three steps with a checkpoint of each."""
    options = ["run.steps=3", "run.checkpoint_every=1", "run.keep_checkpoints=9"]
    assert train(small("kept", *options)) == 0
    return runs / "kept"


@pytest.fixture
def copied(kept, runs, request) -> Path:
    """A copy of it, to be damaged."""
    return shutil.copytree(kept, runs / request.node.name)


def refusal(small, directory: Path) -> str:
    with pytest.raises(DamagedError) as caught:
        train(small(directory.name, "run.steps=4"), resume=directory)
    return str(caught.value).replace(f"{directory}/checkpoints/", "")


def cut(file: Path, *, size: int) -> None:
    os.truncate(file, size)


WAY_OUT = ": move it away to resume from step-000002, or name step-000002"


def test_cut_weights_are_named_with_the_checkpoint_before(copied, small):
    last = copied / "checkpoints" / "step-000003"
    cut(last / "model.safetensors", size=1000)
    said = "step-000003 is damaged (model.safetensors is cut short or overwritten)" + WAY_OUT
    assert refusal(small, copied) == said
    with pytest.raises(DamagedError) as caught:
        evaluate(copied, [], 2, None)
    assert str(caught.value).replace(f"{copied}/checkpoints/", "") == said
    cut(copied / "checkpoints" / "step-000002" / "optimizer.safetensors", size=100)
    assert "move it away to resume from step-000001, or name" in refusal(small, copied)
    shutil.rmtree(last)
    assert "(optimizer.safetensors is cut short" in refusal(small, copied)
    shutil.rmtree(copied / "checkpoints" / "step-000001")
    assert refusal(small, copied).endswith("), and no older one is whole")


def test_a_cut_state_is_told_in_words(copied, small):
    state = copied / "checkpoints" / "step-000003" / "run.json"
    whole = state.read_text()
    cut(state, size=100)
    said = refusal(small, copied)
    assert said.startswith("step-000003 is damaged (run.json: no whole JSON: it breaks off")
    assert said.endswith(WAY_OUT)
    value = json.loads(whole)
    del value["notes"]
    state.write_text(json.dumps(value))
    assert refusal(small, copied) == (
        "step-000003 is damaged (run.json: state.notes is missing)" + WAY_OUT
    )
    state.write_text(whole)
    (state.parent / "buffer.jsonl").write_text('{"id": 1}\n')
    assert "(buffer.jsonl: trajectory.group is missing)" in refusal(small, copied)


def test_weights_of_another_model_are_named(copied, small, runs):
    last = copied / "checkpoints" / "step-000003"
    build_tiny("0.3M", directory=runs / "other", seed=0, tokenizer=load_tokenizer(last))
    for name in ("model.safetensors", "config.json"):
        shutil.copyfile(runs / "other" / name, last / name)
    said = refusal(small, copied)
    assert said.startswith("step-000003 is damaged (model.safetensors is of another model: its ")
    assert said.endswith(WAY_OUT)
    with pytest.raises(DamagedError, match="is of another model"):
        evaluate(copied, [], 2, None)


def test_a_missing_file_is_named(copied, small):
    (copied / "checkpoints" / "step-000003" / "trainer.json").unlink()
    assert refusal(small, copied) == "step-000003 is damaged (trainer.json is missing)" + WAY_OUT


def test_a_run_that_goes_on_elsewhere_holds_its_own_directory_alone(kept, small, runs):
    with lock_directory(kept):
        config = small("forked", "run.steps=4")
        assert train(config, resume=kept) == 0
        assert evaluate(kept, [], 2, None)["episodes"] == 2
    assert not (runs / "forked" / ".lock").exists()
    assert [path.name for path in (runs / "forked" / "checkpoints").iterdir()] == ["step-000004"]
