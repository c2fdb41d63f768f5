"""Every path of the repository that a document names exists."""

import re
from pathlib import Path

import pytest
from checkout import ROOT

SOURCE = ROOT / "src" / "rollart"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]
IN_CHECKOUT = ("src", "tests", "examples", "benchmarks", "studies", "docs", "deploy", "rollart")
"""What a path that has no ending must begin with, to be ours and no metric's name."""
OF_A_USER = ("path/to/",)


def named_paths(text: str) -> set[str]:
    """Return what is written in backticks, outside of code blocks, and looks like our path."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    spans = re.findall(r"`([\w.{},*-]+/[\w.{},*/-]*)(?::\d+)?`", prose)
    return {
        each
        for each in spans
        if (each.endswith((".py", ".md")) or each.split("/")[0] in IN_CHECKOUT)
        and not each.startswith(OF_A_USER)
    }


def exists(path: str) -> bool:
    """Say whether a path is in the checkout; `{a,b}`, `*` and `NAME` stand for several."""
    group = re.search(r"\{([^}]*)\}", path)
    if group:
        start, end = path[: group.start()], path[group.end() :]
        return all(exists(f"{start}{each}{end}") for each in group[1].split(","))
    pattern = re.sub(r"\bNAME\b", "*", path.rstrip("/"))
    return any(any(root.glob(pattern)) for root in (ROOT, ROOT / "src", SOURCE))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_a_page_names_exists(page: Path):
    named = named_paths(page.read_text(encoding="utf-8"))
    assert {each for each in named if not exists(each)} == set()


def test_paths_are_told_from_other_words():
    text = (
        "`control/staleness.py`, `weights/{store,none}.py`, `tests/docs/`, `weights/pull_s`, "
        "`path/to/file.py`, `runtime/old.py:12`\n```\n`tests/x.py`\n```\n"
    )
    assert named_paths(text) == {
        "control/staleness.py",
        "weights/{store,none}.py",
        "tests/docs/",
        "runtime/old.py",
    }


@pytest.mark.parametrize(
    ("path", "is_there"),
    [
        ("control/staleness.py", True),
        ("src/rollart/control/", True),
        ("rollart/control/staleness.py", True),
        ("tests/docs/test_*.py", True),
        ("benchmarks/NAME.py", True),
        ("weights/{store,index}.py", True),
        ("weights/{store,none}.py", False),
        ("control/cohort.py", False),
    ],
)
def test_a_path_may_be_that_of_the_checkout_or_of_the_package(path: str, is_there: bool):
    assert exists(path) is is_there
