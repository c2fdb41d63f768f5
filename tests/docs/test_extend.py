"""Every example of docs/extend.md trains a step."""

import re
import sys

import pytest
from checkout import ROOT
from extension_runs import train_with

PAGE = (ROOT / "docs" / "extend.md").read_text()
KINDS = ("environment", "reward", "algorithm", "engine", "weight store", "player")


def section(kind: str) -> str:
    found = re.search(rf"^## An? {kind}\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"docs/extend.md has no section on {kind}"
    return found[1]


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """Write the Python files of the page, and forget their modules afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    names = list[str]()
    for block in blocks(PAGE, "python"):
        name = block.removeprefix("# ").partition("\n")[0]
        (tmp_path / name).write_text(block)
        names.append(name.removesuffix(".py"))
    yield tmp_path
    for name in names:
        sys.modules.pop(name, None)


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_trains_a_step(kind, files):
    [fragment] = blocks(section(kind), "toml")
    run = train_with(files, fragment)
    assert run.summary["steps"] == 1
    assert run.replay()["lost"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_is_about_ten_lines(kind):
    [code] = blocks(section(kind), "python")
    lines = [line for line in code.splitlines() if line.strip() and not line.startswith("#")]
    assert len(lines) <= 20
