"""`rollart bench`: how a benchmark is found, called and reported."""

import ast
import json
import sys
from pathlib import Path

import pytest

from rollart.cli import main

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
FILES = sorted(BENCHMARKS.glob("[a-z]*.py"))
TOY = '''"""A toy."""

NAME = "toy"


def run(*, effort):
    print("working")
    return {"effort": effort}
'''


@pytest.fixture
def toy(tmp_path, monkeypatch):
    folder = tmp_path / "benchmarks"
    folder.mkdir()
    (folder / "toy.py").write_text(TOY)
    monkeypatch.setattr("rollart.cli.bench.find_benchmarks", lambda: folder)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for name in [each for each in sys.modules if each.partition(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)
    yield
    for name in ("benchmarks", "benchmarks.toy"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("flags", "effort"), [([], "plain"), (["--quick"], "quick"), (["--full"], "full")]
)
def test_a_benchmark_prints_one_json_object_last(flags, effort, toy, capsys):
    assert main(["bench", "toy", "--json", *flags]) == 0
    printed = capsys.readouterr()
    assert printed.out == json.dumps({"effort": effort}) + "\n"
    assert "working" in printed.err


def test_benchmarks_are_listed_with_what_they_are_about(toy, capsys):
    assert main(["bench"]) == 0
    assert "toy  A toy." in capsys.readouterr().out


def test_quick_and_full_exclude_each_other(toy, capsys):
    assert main(["bench", "toy", "--quick", "--full"]) == 2
    assert "not allowed with" in capsys.readouterr().err


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_benchmark_has_its_name_and_says_what_each_effort_does(path):
    module = ast.parse(path.read_text(encoding="utf-8"))
    names = {
        target.id: node.value
        for node in module.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    run = next(n for n in module.body if isinstance(n, ast.FunctionDef) and n.name == "run")
    assert ast.literal_eval(names["NAME"]) == path.stem
    assert [argument.arg for argument in run.args.kwonlyargs] == ["effort"]
    about = ast.get_docstring(module) or ""
    assert "`--full`" in about
    assert "`--quick`" in about
