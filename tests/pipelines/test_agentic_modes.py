"""Real runs of the schedules and syncs that let engines sample on while weights change."""

import json
from pathlib import Path

import pytest

from rollart.events import EngineUpdated, Resume, Suspend
from rollart.inference.torch.engine import TorchEngine
from rollart.observe.log import read_log
from rollart.observe.replay import replay
from rollart.observe.trackers import read_rows
from rollart.pipelines.agentic import train

STEPS = 4
LONG = ("sampling.max_tokens=30", "tasks.letters.max_tokens=150")
"""Turns of many engine steps, so that weights change amid them."""


def rows_of(directory: Path) -> list[dict[str, float]]:
    return [row for row in read_rows(directory / "metrics.jsonl") if "trainer/loss" in row]


@pytest.mark.parametrize(
    ("mode", "oldest", "options"),
    [("one_off", 1, ()), ("areal", None, ("staleness.alpha=2",))],
    ids=["one_off", "areal"],
)
def test_a_run_trains_on_what_was_sampled_while_it_trained(mode, oldest, options, small, runs):
    assert train(small(mode, f"run.mode={mode!r}", f"run.steps={STEPS}", *LONG, *options)) == 0
    proof, rows = replay(runs / mode), rows_of(runs / mode)
    assert proof["ended"]["trained"] == STEPS * 8
    assert (proof["same_commands"], proof["lost"], proof["trained_twice"]) == (True, 0, 0)
    assert [row["step"] for row in rows] == [1, 2, 3, 4]
    ages = [row["staleness_max"] for row in rows]
    assert ages[0] == 0
    assert 1 <= max(ages) <= (oldest or STEPS - 1)
    assert proof["max_staleness"] == max(ages)
    assert proof["promised_staleness"] == oldest
    assert all(row["trainer/updates"] + row["trainer/no_signal"] == 1 for row in rows)
    assert max(row["trainer/logprob_difference"] for row in rows) < 1e-4
    assert max(row["trainer/staleness_max"] for row in rows) >= 1
    summary = json.loads((runs / mode / "summary.json").read_text())
    assert (summary["mode"], summary["steps"]) == (mode, STEPS)


def test_two_engines_change_weights_one_after_the_other_while_the_other_serves(small, runs):
    options = ["run.mode=rollart", f"run.steps={STEPS}", "run.environments=6", *LONG]
    rolling = ["engine.replicas=2", "syncing.order='rolling'", "staleness.alpha=2"]
    rolling.append("staleness.at_bound='wait'")
    assert train(small("rolling", *options, *rolling)) == 0
    proof = replay(runs / "rolling")
    assert proof["ended"]["trained"] == STEPS * 8
    assert (proof["lost"], proof["trained_twice"]) == (0, 0)
    assert proof["max_staleness"] <= 2
    suspended: set[str] = set()
    most, updated = 0, {"torch-0": [], "torch-1": []}
    (part,) = read_log(runs / "rolling" / "events.jsonl")
    for record in part.records:
        if isinstance(record.event, EngineUpdated):
            updated[record.event.engine].append(record.event.version)
        for command in record.commands:
            if isinstance(command, Resume):
                suspended.discard(command.engine)
            elif isinstance(command, Suspend):
                suspended.add(command.engine)
            most = max(most, len(suspended))
    assert most == 1
    for versions in updated.values():
        assert versions == sorted(set(versions))
        assert versions[-1] == STEPS
    summary = json.loads((runs / "rolling" / "summary.json").read_text())
    assert set(summary["engines"]) == set(updated)
    assert all(each["sampled_tokens"] > 0 for each in summary["engines"].values())
    assert max(row["trainer/logprob_difference"] for row in rows_of(runs / "rolling")) < 1e-4


@pytest.mark.parametrize("keeps", [False, True])
def test_whether_keys_and_values_outlive_their_weights_is_the_config_s(
    keeps, small, runs, monkeypatch
):
    update, said, amid = TorchEngine.update, [], []

    def noting(self, version, weights, *, keep_kv):
        said.append(keep_kv)
        amid.append(self.busy)
        update(self, version, weights, keep_kv=keep_kv)

    monkeypatch.setattr(TorchEngine, "update", noting)
    name = f"keeps-{keeps}"
    inside = "weights.store='memory'"  # no process for the trainer: the engine is what matters
    options = ["run.mode=rollart", f"run.steps={STEPS}", "staleness.alpha=2", inside, *LONG]
    assert train(small(name, *options, f"syncing.keep_kv={str(keeps).lower()}")) == 0
    assert set(said) == {keeps}
    assert any(amid)
    (engine,) = json.loads((runs / name / "summary.json").read_text())["engines"].values()
    assert (engine["recomputed_tokens"] == 0) == keeps
