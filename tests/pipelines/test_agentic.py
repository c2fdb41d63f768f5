"""Real runs: torch engine, trainer process, shared memory between them."""

import json
import signal
from pathlib import Path

import pytest
from letter_env import Letters
from safetensors.torch import load_file

from rollart.checkpoints.save import checkpoints, load_saved
from rollart.errors import UserError
from rollart.events import Lend, Recall
from rollart.observe.log import read_log
from rollart.observe.replay import replay
from rollart.observe.trackers import read_rows
from rollart.pipelines.agentic import train
from rollart.pipelines.evaluation import evaluate


def learning(directory: Path) -> dict[int, dict[str, float]]:
    """Return what each step learned from and how, without how long it took."""
    names = (
        *("reward_mean", "success_rate", "trained_tokens", "staleness_max"),
        *("trainer/loss", "trainer/grad_norm", "trainer/entropy", "trainer/logprob_difference"),
    )
    rows = [row for row in read_rows(directory / "metrics.jsonl") if "trainer/loss" in row]
    return {int(row["step"]): {name: row[name] for name in names} for row in rows}


def trained(directory: Path, step: int = 4) -> dict[str, object]:
    """Return what a checkpoint holds of a trainer, to the bit: weights, moments, schedule.

    Not torch's own generator: each process seeds its own, and a step draws nothing from it.
    """
    saved = directory / "checkpoints" / f"step-{step:06d}"
    files = [*saved.glob("model*.safetensors"), *saved.glob("optimizer*.safetensors")]
    found = {
        f"{path.name}:{name}": tensor.numpy().tobytes()
        for path in files
        for name, tensor in load_file(path).items()
    }
    assert {key.partition(":")[0] for key in found} == {
        "model.safetensors",
        "optimizer.safetensors",
    }
    record = json.loads((saved / "trainer.json").read_text())
    del record["rng"]
    return found | record


@pytest.fixture
def interrupt_at(monkeypatch):
    """Return a function that has the nth reset from now on send an interrupt."""

    def arm(reset: int, by: signal.Signals = signal.SIGINT) -> None:
        monkeypatch.setattr(Letters, "resets", 0)
        monkeypatch.setattr(Letters, "interrupt_by", by)
        monkeypatch.setattr(Letters, "interrupt_at", reset)

    return arm


@pytest.fixture(scope="module")
def whole(small, runs) -> Path:
    """A sync run of four steps, never interrupted."""
    options = ["run.steps=4", "run.checkpoint_every=2", "run.keep_checkpoints=9"]
    assert train(small("whole", *options, "run.evaluate_episodes=6")) == 0
    return runs / "whole"


def test_a_run_leaves_its_directory(whole):
    files = {path.name for path in whole.iterdir()}
    assert files == {
        "checkpoints",
        "config.toml",
        "events.jsonl",
        "learning_curve.png",
        "metrics.jsonl",
        "samples",
        "summary.json",
        "tensorboard",
    }
    assert [path.name for path in checkpoints(whole / "checkpoints")] == [
        "step-000002",
        "step-000004",
    ]
    sampled = sorted(path.name.rpartition("-")[0] for path in (whole / "samples").iterdir())
    assert sampled == ["step-000001", "step-000002", "step-000003", "step-000004"]
    assert not list((whole / "checkpoints").glob(".*"))


def test_the_summary_says_what_was_reached_and_where_the_time_went(whole):
    summary = json.loads((whole / "summary.json").read_text())
    assert (summary["name"], summary["mode"], summary["steps"]) == ("small", "sync", 4)
    assert summary["interrupted"] is False
    assert summary["success_before"] == summary["before"]["success_rate"]
    assert summary["success_after"] == summary["after"]["success_rate"]
    assert set(summary["seconds"]) == {"model", "start", "evaluation", "training"}
    trained = sum(row["trained_tokens"] for row in learning(whole).values())
    assert summary["tokens"] == {"trained": trained, "wasted": {}}


def test_the_run_proves_itself_by_replay(whole):
    proof = replay(whole)
    assert proof["ended"] == {"trained": 32}
    assert (proof["open"], proof["lost"], proof["trained_twice"]) == (0, 0, 0)
    assert (proof["max_staleness"], proof["promised_staleness"]) == (0, 0)


def test_a_run_that_goes_on_learns_the_same_to_the_last_bit(whole, small, runs):
    assert train(small("cut")) == 0
    assert list(learning(runs / "cut")) == [1, 2]
    assert train(small("cut", "run.steps=4"), resume=runs / "cut") == 0
    assert learning(runs / "cut") == learning(whole)
    assert trained(runs / "cut") == trained(whole)
    assert trained(whole) != trained(whole, step=2)
    assert len(read_log(runs / "cut" / "events.jsonl")) == 2
    proof = replay(runs / "cut")
    assert proof["ended"] == {"trained": 32}
    assert (proof["open"], proof["lost"], proof["trained_twice"]) == (0, 0, 0)


def test_the_summary_of_a_run_that_went_on_is_of_the_whole_run(whole, small, runs):
    first = json.loads((whole / "summary.json").read_text())
    assert train(small("summed")) == 0
    begun = json.loads((runs / "summed" / "summary.json").read_text())
    assert train(small("summed", "run.steps=4"), resume=runs / "summed") == 0
    last = json.loads((runs / "summed" / "summary.json").read_text())
    assert last["tokens"] == first["tokens"]
    assert last["seconds"]["training"] > begun["seconds"]["training"]


def test_a_trainer_in_this_process_learns_the_same(whole, small, runs):
    assert train(small("inside", "weights.store='memory'")) == 0
    first = learning(whole)
    assert learning(runs / "inside") == {step: first[step] for step in (1, 2)}


def test_weights_that_travel_in_buckets_as_changes_teach_the_same(whole, small, runs):
    place = f"weights.place={str(runs / 'weights')!r}"
    options = ["weights.store='files'", place, "weights.bucket_bytes=65536", "weights.delta=true"]
    assert train(small("buckets", *options, "run.steps=4")) == 0
    assert learning(runs / "buckets") == learning(whole)
    assert replay(runs / "buckets")["ended"] == {"trained": 32}
    rows = read_rows(runs / "buckets" / "metrics.jsonl")
    took = {name for row in rows for name in row if name.startswith("weights/")}
    assert took == {f"weights/{name}" for name in ("push_s", "pull_s", "exposed_s", "load_s")}


def test_a_checkpoint_of_a_run_goes_on_elsewhere_and_an_earlier_run_there_is_kept(
    whole, small, runs, capfd
):
    earlier = {"config.toml": "an earlier run", "notes.txt": "precious"}
    (runs / "again").mkdir()
    for name, text in earlier.items():
        (runs / "again" / name).write_text(text)
    saved = whole / "checkpoints" / "step-000002"
    assert train(small("again", "run.steps=4"), resume=saved) == 0
    after = {step: row for step, row in learning(whole).items() if step > 2}
    assert learning(runs / "again") == after
    moved = runs / "again.1"
    assert f"the earlier run there was moved to {moved}" in capfd.readouterr().err
    kept = {path.name: path.read_text() for path in moved.iterdir()}
    assert kept == earlier
    assert saved.is_dir()


def test_an_interrupted_run_goes_on_and_neither_loses_nor_doubles_anything(
    whole, small, runs, interrupt_at, capfd
):
    options = [
        "run.mode=rollart",
        "run.steps=4",
        "run.environments=4",
        "staleness.alpha=2",
        "staleness.at_bound=wait",
        "batching.groups_per_step=4",
        "batching.group_size=2",
    ]
    directory = runs / "stopped"
    interrupt_at(14)
    assert train(small("stopped", *options)) == 130
    said = capfd.readouterr().err
    assert "stopping, a checkpoint is written; press Ctrl-C again to stop at once" in said
    assert f"resume with: rollart train --resume {directory}" in said
    assert json.loads((directory / "summary.json").read_text())["interrupted"] is True
    saved = load_saved(checkpoints(directory / "checkpoints")[-1])
    assert saved.trajectories
    first = replay(directory)
    assert (first["open"], first["lost"]) == (len(saved.trajectories), 0)

    assert train(small("stopped", *options), resume=directory) == 0
    proof = replay(directory)
    assert proof["ended"]["trained"] == 4 * 4 * 2
    assert (proof["open"], proof["lost"], proof["trained_twice"]) == (0, 0, 0)
    assert proof["max_staleness"] <= 2
    assert sorted(learning(directory)) == [1, 2, 3, 4]
    kept = {trajectory.id for trajectory in saved.trajectories}
    header = read_log(directory / "events.jsonl")[1].header.snapshot
    in_snapshot = {id_ for group in header["groups"] for _, id_, _ in group["scored"]}
    assert in_snapshot == kept


def test_an_on_policy_run_interrupted_in_mid_rollout_learns_the_same_to_the_last_bit(
    whole, small, runs, interrupt_at
):
    directory = runs / "stopped-on-policy"
    interrupt_at(2 * 8 + 5)  # two batches of eight, then amid the third
    assert train(small("stopped-on-policy", "run.steps=4")) == 130
    assert [path.name for path in checkpoints(directory / "checkpoints")] == ["step-000002"]
    assert trained(directory, step=2) == trained(whole, step=2)
    assert train(small("stopped-on-policy", "run.steps=4"), resume=directory) == 0
    assert learning(directory) == learning(whole)
    assert trained(directory) == trained(whole)


def test_a_run_that_is_terminated_saves_what_it_has(small, runs, interrupt_at, capfd):
    directory = runs / "terminated"
    interrupt_at(12, signal.SIGTERM)
    assert train(small("terminated", "run.steps=4")) == 128 + signal.SIGTERM
    assert "stopping, a checkpoint is written" in capfd.readouterr().err
    assert train(small("terminated", "run.steps=4"), resume=directory) == 0
    said = capfd.readouterr().err
    step = json.loads((directory / "summary.json").read_text())["resumed_at"]
    saved = directory / "checkpoints" / f"step-{step:06d}"
    assert f"resuming from {saved} (step {step} of 4)\n" in said
    assert replay(directory)["ended"]["trained"] == 32


def test_a_run_that_goes_on_says_what_is_new(whole, small, capfd):
    options = ["run.steps=4", "run.checkpoint_every=2", "run.keep_checkpoints=9"]
    assert train(small("elsewhere", *options, "retry.max_attempts=7"), resume=whole) == 0
    said = capfd.readouterr().err
    saved = whole / "checkpoints" / "step-000004"
    elsewhere = whole.parent / "elsewhere"
    place = f"(step 4 of 4) in {elsewhere}; the run it belongs to is not changed"
    assert f"resuming from {saved} {place}\n" in said
    assert "nothing is left to train: raise run.steps to train more\n" in said
    assert "changed: retry.max_attempts = 3 -> 7\n" in said
    assert "changed: run." not in said.replace("changed: run.evaluate_episodes = 6 -> 0", "")


def test_an_interrupt_before_training_ends_the_run_at_once(whole, small, interrupt_at, capfd):
    interrupt_at(2)
    assert train(small("early", "run.evaluate_episodes=8")) == 130
    said = capfd.readouterr().err
    assert "Traceback" not in said
    assert said.endswith("stopped at once; last checkpoint: none\n")


def test_a_run_is_evaluated_from_its_newest_checkpoint(whole):
    figures = evaluate(whole, [], 5, None)
    assert figures["checkpoint"] == str(whole / "checkpoints" / "step-000004")
    assert figures["episodes"] == 5
    assert 0.0 <= figures["success_rate"] <= 1.0
    assert evaluate(whole, [], 5, None) == figures
    named = evaluate(whole / "checkpoints" / "step-000002", ["run.environments=2"], 3, 0.0)
    assert named["checkpoint"].endswith("step-000002")
    after = json.loads((whole / "summary.json").read_text())["after"]
    assert evaluate(whole, [], None, None)["success_rate"] == after["success_rate"]


def test_evaluations_on_the_way_judge_the_weights_that_are_served(small, runs):
    options = ["run.steps=5", "run.evaluate_every=2", "run.evaluate_episodes=4", "run.mode=rollart"]
    assert train(small("judged", *options)) == 0
    judged = judged_steps(runs / "judged")
    assert (judged[0], judged[-1]) == (0, 5)
    assert [step // 2 for step in judged[1:-1]] == [1, 2][: len(judged) - 2]
    assert len(judged) > 2


def test_every_token_an_engine_sampled_is_accounted_for(small, runs):
    options = ["run.mode=rollart", "run.steps=12", "run.environments=8", "sampling.max_tokens=60"]
    redundant = ["redundancy.extra_members=2", "tasks.letters.max_tokens=250"]
    assert train(small("counted", *options, *redundant)) == 0
    summary = json.loads((runs / "counted" / "summary.json").read_text())
    tokens, (engine,) = summary["tokens"], summary["engines"].values()
    counted = tokens["trained"] + sum(tokens["wasted"].values())
    assert tokens["wasted"]["cancelled:surplus"] > 0
    # What the very end of a run cuts off is told to nobody: a turn of each environment.
    assert 0 <= engine["sampled_tokens"] - counted <= 8 * 60


def judged_steps(directory: Path) -> list[int]:
    rows = read_rows(directory / "metrics.jsonl")
    return [int(row["step"]) for row in rows if "eval/success_rate" in row]


def test_evaluations_on_the_way_change_nothing_of_an_on_policy_run(whole, small, runs):
    options = ["run.evaluate_every=3", "run.evaluate_episodes=5"]
    assert train(small("between", "run.steps=4", *options)) == 0
    assert judged_steps(runs / "between") == [0, 3, 4]
    assert learning(runs / "between") == learning(whole)


def test_a_run_that_goes_on_is_evaluated_at_the_steps_it_would_have_been(small, runs):
    options = ["run.evaluate_every=2", "run.evaluate_episodes=4"]
    assert train(small("judged-on", "run.steps=3", *options)) == 0
    assert train(small("judged-on", "run.steps=5", *options), resume=runs / "judged-on") == 0
    assert judged_steps(runs / "judged-on") == [0, 2, 3, 4, 5]


def test_an_evaluation_that_was_interrupted_is_made_when_the_run_goes_on(
    small, runs, interrupt_at, capfd
):
    options = ["run.steps=3", "run.evaluate_every=1", "run.evaluate_episodes=4"]
    interrupt_at(4 + 8 + 2)  # four held-out episodes, a batch of eight, then two held-out ones
    assert train(small("unjudged", *options)) == 130
    assert judged_steps(runs / "unjudged") == [0]
    assert train(small("unjudged", *options), resume=runs / "unjudged") == 0
    assert judged_steps(runs / "unjudged") == [0, 1, 2, 3]


@pytest.mark.parametrize("mode", ["rollart", "sync_plus"])
def test_training_hardware_serves_between_steps(mode, small, runs):
    options = [f"run.mode={mode!r}", "run.steps=3", "lending.enabled=true"]
    name = f"lent-{mode}"
    assert train(small(name, *options, "lending.min_idle_s=0.0")) == 0
    proof = replay(runs / name)
    assert (proof["same_commands"], proof["lost"], proof["trained_twice"]) == (True, 0, 0)
    (part,) = read_log(runs / name / "events.jsonl")
    issued = [type(command) for record in part.records for command in record.commands]
    assert issued.count(Lend) == issued.count(Recall) >= 1
    summary = json.loads((runs / name / "summary.json").read_text())
    assert summary["engines"]["torch-lent"]["sampled_tokens"] > 0
    differences = [row["trainer/logprob_difference"] for row in learning(runs / name).values()]
    assert max(differences) < 1e-4


def test_a_cluster_that_is_not_there_is_told_before_anything_is_made(small, runs, monkeypatch):
    monkeypatch.setattr(
        "rollart.pipelines.start_model.prepare_model", lambda *_: pytest.fail("made")
    )
    with pytest.raises(UserError, match="no Ray cluster could be joined"):
        train(small("nowhere", "ray.address=127.0.0.1:1"))
    assert not (runs / "nowhere").exists()
