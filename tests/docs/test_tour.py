"""Every file and function that docs/tour.md names is there."""

import ast
import re

import pytest
from checkout import ROOT

PAGE = (ROOT / "docs" / "tour.md").read_text(encoding="utf-8")
SOURCE = ROOT / "src" / "rollart"
STOPS = re.findall(r"`([a-z_/]+\.py)` `([\w.]+)`", PAGE)


def names_of(tree: ast.Module) -> set[str]:
    """Return functions, classes and `Class.method` of a module."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            inner = (each for each in node.body if hasattr(each, "name"))
            found |= {f"{node.name}.{each.name}" for each in inner}  # pyright: ignore
    return found


def test_the_tour_has_about_a_dozen_stops():
    rows = re.findall(r"^\| \d+ \|", PAGE, re.MULTILINE)
    assert 10 <= len(rows) <= 14
    assert len(STOPS) >= len(rows)


@pytest.mark.parametrize(("file", "name"), STOPS)
def test_a_stop_is_there(file: str, name: str):
    assert name in names_of(ast.parse((SOURCE / file).read_text(encoding="utf-8")))


@pytest.mark.parametrize("file", sorted(set(re.findall(r"`([a-z_/]+\.py)`", PAGE))))
def test_a_file_is_there(file: str):
    assert (SOURCE / file).exists() or (ROOT / file).exists()
