"""Imitation as a pipeline: directory, metrics, evaluations, resume, Ctrl-C."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT

import rollart
from rollart.errors import ConfigError
from rollart.pipelines.imitation import ImitationRun, train

SUPPORT = str(ROOT / "tests" / "support")


def config(directory: Path, **run: Any) -> dict[str, Any]:
    plain = {"directory": str(directory / "run"), "pipeline": "imitation", "steps": 40}
    plain |= {"evaluate_episodes": 4, "environments": 2, "import_paths": [SUPPORT]}
    return {
        "run": plain | run,
        "policy": {"type": "toy_policy:Line", "spread": 0.01},
        "engine": {"name": "scripted"},
        "tasks": {"doubling": {"env": "toy_policy:Doubling", "player": "toy_policy:LinePlayer"}},
        "training": {"learning_rate": 0.3},
    }


def test_it_learns_and_leaves_a_run(tmp_path: Path) -> None:
    run = rollart.train(config(tmp_path, evaluate_every=20))

    losses = [row["loss"] for row in run.metrics if "loss" in row]
    assert len(losses) == 40
    assert losses[-1] < losses[0] / 5
    assert [row["step"] for row in run.metrics if "eval/success_rate" in row] == [20, 40]
    assert run.summary["success_after"] == 1.0
    assert run.summary["steps"] == 40
    assert (run.directory / "learning_curve.png").is_file()
    assert rollart.evaluate(run, episodes=3)["success_rate"] == 1.0


def test_a_resumed_run_equals_one_that_was_not_stopped(tmp_path: Path) -> None:
    whole = rollart.train(config(tmp_path / "whole"))
    rollart.train(config(tmp_path / "parts", steps=15))
    parts = rollart.train(config(tmp_path / "parts"), resume=tmp_path / "parts" / "run")

    def losses(run: rollart.Run) -> list[float]:
        return [row["loss"] for row in run.metrics if "loss" in row]

    assert losses(parts) == losses(whole)
    assert [row["step"] for row in parts.metrics if "loss" in row] == list(range(1, 41))


def test_an_interrupt_saves_and_says_how_to_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def begun(run: ImitationRun) -> None:
        threading.Thread(target=run.interrupt).start()

    code = train(rollart.load_config(config(tmp_path, steps=10_000_000)), begun=begun)

    run = rollart.read_run(tmp_path / "run")
    assert code == 130
    assert run.summary["interrupted"]
    assert len(run.checkpoints) == 1
    assert "resume with: rollart train --resume" in capsys.readouterr().err


def test_ctrl_c_still_saves_after_an_evaluation(tmp_path: Path) -> None:
    settings = rollart.load_config(config(tmp_path, steps=1_000_000, evaluate_every=5))

    def press() -> None:
        rows = tmp_path / "run" / "metrics.jsonl"
        while not (rows.exists() and "eval/" in rows.read_text()):
            if over.wait(0.01):
                return
        os.kill(os.getpid(), signal.SIGINT)

    over = threading.Event()
    thread = threading.Thread(target=press, daemon=True)
    thread.start()
    try:
        assert train(settings) == 130
    finally:
        over.set()
        thread.join()
    assert rollart.read_run(tmp_path / "run").checkpoints


def test_an_interrupt_from_another_thread_ends_an_evaluation(tmp_path: Path) -> None:
    """In a notebook the run is in a thread, and Ctrl-C calls `interrupt` from another."""
    sections = config(tmp_path, steps=5)
    sections["tasks"]["doubling"]["options"] = {"pause_s": 60.0}
    runs, codes = list[ImitationRun](), list[int]()

    def work() -> None:
        codes.append(train(rollart.load_config(sections), begun=runs.append))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    while not (runs and runs[0]._end_evaluation is not None):
        assert thread.is_alive()
        thread.join(0.01)
    runs[0].interrupt()
    thread.join(30.0)
    assert codes == [130]
    assert rollart.read_run(tmp_path / "run").summary["interrupted"]


def test_an_evaluation_that_fails_costs_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sections = config(tmp_path, evaluate_every=10)
    sections["tasks"]["doubling"]["options"] = {"broken": True}

    run = rollart.train(sections)

    assert run.summary["success_after"] is None
    assert len(run.checkpoints) == 1
    assert "no evaluation at step 40" in capsys.readouterr().err


def test_a_resume_elsewhere_leaves_the_first_run_as_it_is(tmp_path: Path) -> None:
    first = rollart.train(config(tmp_path, checkpoint_every=10, keep_checkpoints=9))
    names = [path.name for path in first.checkpoints]
    rollart.train(config(tmp_path / "other"), resume=first.checkpoints[0])

    assert [path.name for path in first.checkpoints] == names


def test_a_language_model_is_refused(tmp_path: Path) -> None:
    sections = config(tmp_path)
    sections |= {"policy": {"type": "language"}, "model": {"warm_start": False}}

    with pytest.raises(ConfigError, match=r"run\.pipeline.*use agentic"):
        rollart.train(sections)


def test_an_unknown_pipeline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"run\.pipeline.*imitation"):
        rollart.load_config(config(tmp_path, pipeline="imitaton"))
