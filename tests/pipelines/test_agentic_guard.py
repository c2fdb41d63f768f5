"""Real runs with an engine that computes another function than the trainer."""

import pytest

from rollart.errors import GuardError, UserError
from rollart.models.architecture import Architecture
from rollart.observe.trackers import read_rows
from rollart.pipelines.agentic import train


@pytest.fixture
def misread(monkeypatch):
    """Let the engine, which runs in this process, rotate at half the frequencies."""
    true = Architecture.inverse_frequencies
    monkeypatch.setattr(Architecture, "inverse_frequencies", lambda self: true(self) / 2)


def steps_of(directory):
    return [row for row in read_rows(directory / "metrics.jsonl") if "trainer/loss" in row]


def test_a_run_stops_when_engine_and_trainer_disagree(small, runs, misread):
    with pytest.raises(
        UserError, match=r"engine and trainer disagree: over .* version 0"
    ) as caught:
        train(small("stopped"))
    assert isinstance(caught.value, GuardError)
    assert steps_of(runs / "stopped") == []


def test_a_run_may_only_warn_of_it(small, runs, misread, capsys):
    assert train(small("warned", "training.guard='warn'")) == 0
    rows = steps_of(runs / "warned")
    assert [row["trainer/guard_exceeded"] for row in rows] == [1.0] * len(rows)
    said = capsys.readouterr()
    assert (said.out + said.err).count("engine and trainer disagree") == 1


def test_a_run_that_agrees_is_compared_after_every_update(small, runs):
    assert train(small("agreed", "sampling.top_p=0.9", "sampling.temperature=0.8")) == 0
    rows = steps_of(runs / "agreed")
    assert [row["trainer/guard_version"] for row in rows] == list(range(len(rows)))
    assert max(row["trainer/guard_gap_max"] for row in rows) < 1e-3
    assert max(row["trainer/guard_exceeded"] for row in rows) == 0.0
