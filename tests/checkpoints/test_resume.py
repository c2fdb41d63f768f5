"""Runs that are resumed with what they began with, or stay as they are."""

import os
import shutil
import signal
import threading

import pytest
from letter_env import Letters

from rollart.checkpoints.save import checkpoints, load_saved
from rollart.errors import ConfigError, EngineError, ModelError, UserError
from rollart.inference.torch.engine import TorchEngine
from rollart.models.tiny import build_tiny
from rollart.models.tokenizer import load_tokenizer
from rollart.observe.replay import replay
from rollart.observe.trackers import read_rows
from rollart.pipelines.agentic import TrainingRun, train
from rollart.training.trainer import TorchTrainer

KEPT = ("run.steps=4", "run.checkpoint_every=2", "run.keep_checkpoints=9")
OTHER_TASK = "tasks.letters.max_turns=2"
"""Of which another tiny model, with another tokenizer, would be built."""


def contents(directory):
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_a_run_whose_tasks_change_keeps_the_model_it_began_with(small, runs, capfd):
    assert train(small("retasked", "algorithm.kl_coefficient=0.1")) == 0
    first = checkpoints(runs / "retasked" / "checkpoints")[-1]
    built = sorted((runs / "cache").iterdir())
    config = small("retasked", OTHER_TASK, "algorithm.kl_coefficient=0.1", "run.steps=3")
    capfd.readouterr()
    assert train(config, resume=runs / "retasked") == 0
    assert "building" not in capfd.readouterr().err
    assert sorted((runs / "cache").iterdir()) == built
    last = checkpoints(runs / "retasked" / "checkpoints")[-1]
    assert last.name == "step-000003"
    assert (last / "tokenizer.json").read_bytes() == (first / "tokenizer.json").read_bytes()
    assert load_saved(last).notes["start"] == load_saved(first).notes["start"]


def test_a_tiny_model_that_is_gone_is_built_again_only_if_it_would_be_the_same(small, runs):
    cache = f"model.cache={str(runs / 'passing')!r}"
    assert train(small("gone", cache)) == 0
    shutil.rmtree(runs / "passing")
    with pytest.raises(ConfigError, match="which no longer exists, and what it was built from"):
        train(small("gone", cache, OTHER_TASK, "run.steps=3"), resume=runs / "gone")
    assert not (runs / "passing").exists()
    assert train(small("gone", cache, "run.steps=3"), resume=runs / "gone") == 0


def test_a_model_with_another_tokenizer_is_refused(small, runs):
    assert train(small("spoken")) == 0
    saved = checkpoints(runs / "spoken" / "checkpoints")[-1]
    shutil.copytree(saved, runs / "translated")
    path = runs / "translated" / "tokenizer.json"
    path.write_text(path.read_text() + "\n")
    config = small("spoken", f"model.path={str(runs / 'translated')!r}", "run.steps=3")
    with pytest.raises(ConfigError, match=r"differs from that of .*step-000002: use the model"):
        train(config, resume=saved)


@pytest.mark.parametrize("what", ["another model", "a damaged optimizer"])
def test_an_older_checkpoint_that_is_refused_costs_nothing_that_came_after_it(small, runs, what):
    name = what.replace(" ", "-")
    directory = runs / name
    assert train(small(name, *KEPT)) == 0
    older = directory / "checkpoints" / "step-000002"
    more: tuple[str, ...] = ()
    if what == "another model":
        build_tiny("0.3M", directory=runs / "larger", seed=0, tokenizer=load_tokenizer(older))
        more = (f"model.path={str(runs / 'larger')!r}",)
    else:
        (older / "optimizer.safetensors").write_bytes(b"rubbish")
    before = contents(directory)
    with pytest.raises(ModelError):
        code = train(small(name, *KEPT, *more), resume=older)
        pytest.fail(f"it ended with code {code}")
    assert contents(directory) == before
    assert [row["step"] for row in read_rows(directory / "metrics.jsonl")] == [1, 2, 3, 4]
    assert train(small(name, "run.steps=5"), resume=directory) == 0
    assert replay(directory)["lost"] == 0


def test_an_interrupt_while_the_last_checkpoint_is_written_does_not_cost_it(
    small, runs, monkeypatch, capfd
):
    save, interrupt, noticed = TorchTrainer.save, TrainingRun._interrupt, threading.Event()

    def note(self, main, number):
        interrupt(self, main, number)
        noticed.set()

    def interrupted(self, directory):
        if not noticed.is_set():  # a second signal could reach the run of the next test
            os.kill(os.getpid(), signal.SIGINT)
            assert noticed.wait(60)
        save(self, directory)

    monkeypatch.setattr(TrainingRun, "_interrupt", note)
    monkeypatch.setattr(TorchTrainer, "save", interrupted)
    assert train(small("saving", "weights.store='memory'")) == 130
    assert [path.name for path in checkpoints(runs / "saving" / "checkpoints")] == ["step-000002"]
    assert "stopping, a checkpoint is written" in capfd.readouterr().err


def test_samples_that_cannot_be_written_cost_no_step(small, runs, monkeypatch, capfd):
    directory = runs / "unsampled"
    reset = Letters.reset

    def occupy(self, seed, task):
        directory.mkdir(exist_ok=True)
        (directory / "samples").touch()
        return reset(self, seed, task)

    monkeypatch.setattr(Letters, "reset", occupy)
    assert train(small("unsampled")) == 0
    assert "no samples of this step: " in capfd.readouterr().err
    assert (directory / "samples").is_file()


def test_an_engine_that_breaks_ends_the_run_with_what_was_trained_saved(small, runs, monkeypatch):
    step = TorchEngine.step

    def breaking(self):
        if self.version >= 1:
            raise RuntimeError("can't allocate memory")
        return step(self)

    monkeypatch.setattr(TorchEngine, "step", breaking)
    with pytest.raises(UserError) as caught:
        train(small("broken", "run.steps=4"))
    said = str(caught.value)
    assert "engine torch-0 failed in a step: RuntimeError: can't allocate memory (" in said
    assert f"resume with: rollart train --resume {runs / 'broken'}" in said
    monkeypatch.setattr(TorchEngine, "step", step)
    assert train(small("broken", "run.steps=2"), resume=runs / "broken") == 0
    assert replay(runs / "broken")["lost"] == 0


def test_an_engine_that_breaks_in_the_first_evaluation_is_one_message(small, monkeypatch):
    def breaking(_self):
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr(TorchEngine, "step", breaking)
    with pytest.raises(EngineError, match="RuntimeError: can't allocate memory"):
        train(small("unbegun", "run.evaluate_episodes=6"))


def test_evaluated_environments_have_slots_of_their_own(small, monkeypatch):
    made: dict[str, set[int]] = {"train": set(), "test": set()}

    class Numbered(Letters):
        def __init__(self, *, slot: int):
            self._slot = slot

        def reset(self, seed, task):
            made[task["split"]].add(self._slot)
            return super().reset(seed, task)

    monkeypatch.setattr("letter_env.Letters", Numbered)
    assert train(small("numbered", "run.evaluate_episodes=6")) == 0
    assert made["train"] <= set(range(6))
    assert made["test"] <= set(range(6, 9))
    assert all(made.values())
