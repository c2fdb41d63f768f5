"""A run whose weights cannot be published or do not arrive loses nothing that was trained."""

import re
import time

import pytest

from rollart.checkpoints import save as last_save
from rollart.checkpoints.save import load_saved
from rollart.errors import StorageError, UserError
from rollart.observe.replay import replay
from rollart.pipelines.agentic import train
from rollart.training.trainer import TorchTrainer
from rollart.weights.store import MemoryStore

FULL = "the store is full: lower weights.keep"
HERE = ("weights.store='memory'", "run.steps=6")


@pytest.fixture
def full_store(monkeypatch):
    """A store in this process that takes no third version."""
    stream = MemoryStore.stream

    def refuse(self, version, specs, arrays):
        if version >= 3:
            raise StorageError(FULL)
        stream(self, version, specs, arrays)

    monkeypatch.setattr(MemoryStore, "stream", refuse)
    return lambda: monkeypatch.setattr(MemoryStore, "stream", stream)


@pytest.mark.parametrize("mode", ["sync", "rollart"])
def test_what_was_trained_is_saved_when_the_store_is_full(mode, small, runs, full_store):
    config = small(mode, *HERE, f"run.mode='{mode}'")
    directory = runs / mode
    with pytest.raises(UserError) as caught:
        train(config)
    step = int(re.search(r"step-0*(\d+)", str(caught.value))[1])
    kept = directory / "checkpoints" / f"step-{step:06d}"
    assert str(caught.value) == (
        f"{FULL}; step {step} is saved in {kept}: fix the cause, then resume with: "
        f"rollart train --resume {directory}"
    )
    assert load_saved(kept).scheduler["version"] == step >= 3
    full_store()
    assert train(config, resume=directory) == 0
    proof = replay(directory)
    assert (proof["same_commands"], proof["lost"], proof["trained_twice"]) == (True, 0, 0)


def test_a_save_that_cannot_be_is_said_with_the_last_checkpoint(
    small, runs, full_store, monkeypatch
):
    monkeypatch.setattr(last_save, "_SAVE_S", 0.05)
    monkeypatch.setattr(TorchTrainer, "save", lambda _self, _directory: time.sleep(2.0))
    config = small("slow", *HERE)
    with pytest.raises(UserError, match=r"could not be saved \(it took more than 0\.05 s\); there"):
        train(config)
