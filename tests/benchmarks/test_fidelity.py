"""The matrix of models and the faults that the guard must catch by itself."""

from pathlib import Path

import pytest

from benchmarks.fidelity import summarise
from benchmarks.fidelity_parts.faults import faults
from benchmarks.fidelity_parts.matrix import cases
from benchmarks.fidelity_parts.play import EXACT, Verdict, judge

CASES = {case.name: case for case in cases(is_quick=False)}


@pytest.mark.parametrize("name", faults())
@pytest.mark.filterwarnings("ignore:::transformers")
def test_the_guard_catches_what_a_check_prevents_when_the_check_is_off(name: str, tmp_path: Path):
    assert faults()[name](tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "llama tied MQA llama3",
        "qwen2 window after 0 yarn",
        "qwen3: two entries, dynamic",
        "qwen3 untied adapters on head",
    ],
)
def test_a_model_that_is_served_is_served_exactly(name: str, tmp_path: Path):
    verdict = judge(CASES[name], tmp_path)
    assert (verdict.refusal, verdict.is_silent) == ("", False)
    assert verdict.error <= EXACT


@pytest.mark.parametrize("name", ["qwen3 tied adapters on head", "llama: longrope"])
def test_a_model_that_is_not_served_is_refused_with_a_message(name: str, tmp_path: Path):
    assert judge(CASES[name], tmp_path).refusal


def test_what_is_neither_served_nor_refused_is_silent():
    verdicts = [
        Verdict(name="a", error=2e-6),
        Verdict(name="b", refusal="no"),
        Verdict(name="c", error=0.4),
        Verdict(name="d", error=float("nan")),
    ]
    found = summarise(verdicts, {"x": True, "y": False}, of_episodes=1e-6)
    counts = [found[key] for key in ("cases", "served", "refused", "silent")]
    assert counts == [4, 1, 1, 2]
    assert found["silent_cases"] == ["c", "d"]
    assert (found["guard_cases"], found["guard_caught"], found["guard_missed"]) == (2, 1, ["y"])
