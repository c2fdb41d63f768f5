"""What `rollart bench algorithms` reports, on two algorithms of each kind."""

import pytest

from benchmarks import algorithms

FEW = ("grpo", "gspo_token")


def test_errors_are_reported_by_name(monkeypatch):
    monkeypatch.setattr(algorithms, "CASES", {name: algorithms.CASES[name] for name in FEW})
    monkeypatch.setattr(algorithms, "compare_all_with_trl", lambda draws: {"sapo": draws * 1e-9})
    found = algorithms.run(effort="quick")
    assert found["largest_error"].keys() == found["gradient_error"].keys() == set(FEW)
    assert found["worst_error"] == max(found["largest_error"].values()) < 1e-9
    assert found["worst_gradient_error"] == max(found["gradient_error"].values()) < 1e-8
    assert found["over_trl_error"] == {"sapo": 1e-9}
    assert found["worst_trl_error"] == 1e-9


def test_losses_are_those_of_trl():
    pytest.importorskip("trl")
    found = algorithms.compare_all_with_trl(1)
    assert {"grpo", "dapo", "gspo", "cispo", "sapo", "gmpo", "opsm"} <= found.keys()
    assert max(found.values()) < 1e-5
