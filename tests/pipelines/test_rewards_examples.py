"""The shipped examples whose rewards come from functions, a few steps of each."""

import json
import shutil
from pathlib import Path

import pytest
from checkout import ROOT

from rollart.config import add_import_paths, check_names, load_config
from rollart.observe.replay import replay
from rollart.observe.trackers import read_rows
from rollart.pipelines.agentic import train

EXAMPLES = ROOT / "examples"
SHORT = [
    "run.steps=2",
    "run.environments=8",
    "run.evaluate_episodes=0",
    "run.evaluate_every=0",
    "run.checkpoint_every=0",
    "model.warm_start_episodes=200",
    "model.warm_start_epochs=1",
    "model.warm_start_batch_tokens=1024",
    "batching.groups_per_step=2",
    "batching.group_size=4",
    "engine.torch.threads=1",
    "training.threads=1",
]


def run_example(name: str, directory: Path) -> list[dict[str, float]]:
    """Train a few steps of an example; return the rows of its metrics."""
    here = [f"run.directory={str(directory / name)!r}", f"model.cache={str(directory / 'cache')!r}"]
    config = load_config(EXAMPLES / f"{name}.toml", [*SHORT, *here])
    add_import_paths(config)
    check_names(config)
    assert train(config) == 0
    proof = replay(directory / name)
    assert (proof["same_commands"], proof["lost"], proof["trained_twice"]) == (True, 0, 0)
    assert proof["ended"]["trained"] == 16
    return [row for row in read_rows(directory / name / "metrics.jsonl") if "trainer/loss" in row]


def check_run(directory: Path, rows: list[dict[str, float]], parts: set[str]) -> None:
    """See that what scored, and what it took, is in the metrics, the summary and the samples."""
    for row in rows:
        shown = {name.removeprefix("reward/part/") for name in row if "reward/part/" in name}
        assert shown == parts
        assert row["reward/failed"] == 0
        assert {"reward/latency_p99_s", "reward/cold_starts", "reward/cost"} <= set(row)
    summary = json.loads((directory / "summary.json").read_text())["rewards"]
    assert summary["scored"] >= 16
    assert summary["failures"] == {}
    sample = next((directory / "samples").iterdir()).read_text()
    assert "reward parts:" in sample
    calls = [json.loads(line) for line in (directory / "rewards.jsonl").read_text().splitlines()]
    assert {call["pool"] for call in calls} == {"local"}


def test_sums_are_scored_by_math_verify(tmp_path):
    pytest.importorskip("math_verify")
    rows = run_example("math_rewards", tmp_path)
    check_run(tmp_path / "math_rewards", rows, {"right", "right/stopped", "brief"})


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
def test_programs_are_scored_by_their_tests_in_a_sandbox(tmp_path):
    rows = run_example("code_rewards", tmp_path)
    parts = {"tests", "tests/passed", "tests/total", "tests/stopped"}
    check_run(tmp_path / "code_rewards", rows, parts)
    assert {row["reward/part/tests/total"] for row in rows} == {3.0}
