"""The rules of the house: what keeps the tree small, plain and open; see docs/architecture.md.

Each rule of the code is a test that reads the source with `ast`. Who may import whom is in
pyproject.toml under `tool.importlinter`.
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from importlinter.cli import lint_imports

from rollart.config import Config
from rollart.config.fields import chosen_kind, field_types, option_class
from rollart.plugins import BUILT_IN, find

SOURCE = ROOT / "src" / "rollart"
TESTS = ROOT / "tests"
FILES = sorted(SOURCE.rglob("*.py"))
MOST_FILES = 260
LEAST_CODE_LINES = 120
"""On average over all files."""
MOST_LINES, LEAST_LINES = 500, 60
MOST_FUNCTION_LINES = 60
MOST_GERUNDS = 5
NOUNS_IN_ING = {"lending", "routing", "packing", "scoring", "sharding", "autoscaling"}
"""Module names in -ing that are the field's own nouns."""
ADAPTERS = ("envs/", "rewards/", "weights/blobs/", "training/algorithms/", "rollout/players/")
"""Folders whose files each stand for one name in a config; they may be short."""
IMPURE = {"asyncio", "time", "logging", "datetime", "os", "io", "pathlib", "threading", "secrets"}
"""What control may not import: it has no clock, no I/O and no log."""
BOTTOM = ("errors", "types", "events", "ports", "training_ports", "clock", "seeds", "plugins")
"""Modules at the bottom that need the standard library alone, like control."""
HEAVY = ("torch", "transformers", "ray", "matplotlib", "tensorboardX")
UNMIRRORED = {"docs", "benchmarks", "studies", "scripts", "support", "robot"}
"""Folders of tests that are not of the package."""
AVOIDED = re.compile(
    r"\b(go on|goes on|going on|went on|gone|told|tell|tells|anew|mend|mended|be had|whoever|"
    r"in vain|left behind|leaves? behind|of none|(stop|stops|stopping|end|ends|ending) in order)\b",
    re.IGNORECASE,
)
"""Words that docstrings, comments and messages do without."""
WHOLE = {
    "contract_suite",
    "engine_contract",
    "escapes",
    "invoker_contract",
    "sandbox_contract",
}
"""Tests of a port over all its adapters."""


def relative(file: Path) -> str:
    return file.relative_to(SOURCE).as_posix()


@cache
def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


@cache
def line_count(file: Path) -> int:
    return len(file.read_text(encoding="utf-8").splitlines())


def module_of(file: Path) -> str:
    parts = file.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


MODULES = {module_of(file): file for file in FILES}


def code_lines(file: Path) -> int:
    """Count the lines that are not blank, comments or docstrings."""
    docstrings = set[int]()
    for node in ast.walk(tree_of(file)):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_text and isinstance(node.value.value, str):
            docstrings |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines = set[int]()
    text = file.read_text(encoding="utf-8")
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped and token.type != tokenize.ENDMARKER:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def is_for_types_only(node: ast.stmt) -> bool:
    test = node.test if isinstance(node, ast.If) else None
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def imports_in(body: list[ast.stmt], *, deep: bool) -> Iterator[tuple[int, str, str]]:
    """Yield line, module and name of each import; `deep`: those in functions and classes too."""
    for node in body:
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            for alias in node.names:
                yield node.lineno, node.module or "", alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, ""
        elif is_for_types_only(node):
            continue
        elif isinstance(node, ast.If | ast.Try | ast.With) or (
            deep and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        ):
            blocks = [node.body, *(getattr(node, part, []) for part in ("orelse", "finalbody"))]
            blocks += [handler.body for handler in getattr(node, "handlers", [])]
            for block in blocks:
                yield from imports_in(block, deep=deep)


def imported_modules(file: Path, *, deep: bool) -> set[str]:
    """Return the modules of the package that a file imports."""
    found = set[str]()
    for _, module, name in imports_in(tree_of(file).body, deep=deep):
        target = f"{module}.{name}" if f"{module}.{name}" in MODULES else module
        if target in MODULES:
            found.add(target)
    return found - {module_of(file)}


@cache
def importers() -> dict[str, set[str]]:
    """Return who imports each module, wherever in the file."""
    found = defaultdict[str, set[str]](set)
    for name, file in MODULES.items():
        for target in imported_modules(file, deep=True):
            found[target].add(name)
    return found


def test_the_tree_has_at_most_260_files_of_at_least_120_code_lines_on_average():
    # Every algorithm has a file of its own, however short.
    files = [file for file in FILES if not relative(file).startswith("training/algorithms/")]
    average = sum(map(code_lines, files)) / len(files)
    assert len(files) <= MOST_FILES
    assert average >= LEAST_CODE_LINES, f"{average:.1f} code lines a file in {len(files)} files"


def test_no_file_is_longer_than_500_lines():
    long = {relative(file): line_count(file) for file in FILES if line_count(file) > MOST_LINES}
    assert not long


def test_a_file_is_shorter_than_60_lines_only_if_it_is_an_adapter_or_has_two_importers():
    short = [
        f"{relative(file)}: {line_count(file)} lines, {len(importers()[module_of(file)])} importers"
        for file in FILES
        if line_count(file) < LEAST_LINES
        and file.name not in ("__init__.py", "__main__.py")
        and not relative(file).startswith(ADAPTERS)
        and len(importers()[module_of(file)]) < 2
    ]
    assert not short, "\n".join(short)


def test_no_function_is_longer_than_60_lines():
    long = [
        f"{relative(file)}:{node.lineno}: {node.name} has {length} lines"
        for file in FILES
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (node.end_lineno or node.lineno) - node.lineno + 1) > MOST_FUNCTION_LINES
    ]
    assert not long, "\n".join(long)


def test_no_public_class_name_means_two_things_in_either_package():
    places = defaultdict[str, list[str]](list)
    for file in sorted(SOURCE.parent.glob("rollart*/**/*.py")):
        for node in public_classes(file):
            places[node.name].append(file.relative_to(SOURCE.parent).as_posix())
    assert any(files[0].startswith("rollart_robot/") for files in places.values())
    twice = {name: files for name, files in places.items() if len(files) > 1}
    assert not twice


def test_modules_are_nouns():
    gerunds = [
        relative(file)
        for file in FILES
        if file.stem.endswith("ing") and file.stem not in NOUNS_IN_ING
    ]
    assert len(gerunds) <= MOST_GERUNDS, gerunds


def test_the_source_does_without_the_words_that_the_house_avoids():
    wrong = [
        f"{relative(file)}:{number}: {line.strip()}"
        for file in FILES
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        if AVOIDED.search(line)
    ]
    assert not wrong, "\n".join(wrong)


def test_every_word_of_the_glossary_is_used_in_the_source():
    """A word is used if its parts follow each other in a class, a name or a sentence."""
    rows = (ROOT / "docs" / "words.md").read_text(encoding="utf-8").splitlines()
    words = [found[1] for row in rows if (found := re.match(r"\| \*\*(.+?)\*\*", row))]
    assert len(words) > 60
    source = "\n".join(file.read_text(encoding="utf-8") for file in FILES)
    unused = [
        word
        for word in words
        if not re.search(rf"(?i){'[ _-]?'.join(map(re.escape, word.split()))}", source)
    ]
    assert not unused


def test_no_modules_import_each_other_in_a_circle():
    graph = {name: imported_modules(file, deep=False) for name, file in MODULES.items()}
    done, path = set[str](), list[str]()

    def visit(name: str) -> None:
        assert name not in path, " -> ".join([*path[path.index(name) :], name])
        if name not in done:
            path.append(name)
            for target in sorted(graph[name]):
                visit(target)
            path.pop()
            done.add(name)

    for name in graph:
        visit(name)


def test_only_plugins_names_modules_of_the_package_in_strings():
    wrong = [
        f"{relative(file)}:{node.lineno}: {node.value}"
        for file in FILES
        if file != SOURCE / "plugins.py"
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and re.match(r"rollart\.[a-z_]+", node.value)
        and "\n" not in node.value
    ]
    assert not wrong, "\n".join(wrong)


def test_imports_follow_the_contracts_of_pyproject(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    code = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True)
    assert code == 0, capsys.readouterr().out


def test_only_the_cluster_package_imports_ray():
    wrong = [
        f"{relative(file)}:{line}"
        for file in FILES
        if not relative(file).startswith("cluster/")
        for line, module, _ in imports_in(tree_of(file).body, deep=True)
        if module.partition(".")[0] == "ray"
    ]
    assert not wrong


def test_the_package_imports_nothing_of_the_checkout_around_it():
    wrong = [
        f"{relative(file)}:{line}: {module}"
        for file in FILES
        for line, module, _ in imports_in(tree_of(file).body, deep=True)
        if module.partition(".")[0] in ("studies", "benchmarks", "tests", "examples")
    ]
    assert not wrong, "\n".join(wrong)


def test_control_and_what_is_below_it_need_the_standard_library_alone():
    names = [f"{name}.py" for name in BOTTOM]
    wrong = [
        f"{relative(file)}:{line}: {module}"
        for file in FILES
        if relative(file) in names or relative(file).startswith(("control/", "types/"))
        for line, module, _ in imports_in(tree_of(file).body, deep=True)
        if module.partition(".")[0] not in {*sys.stdlib_module_names, "rollart"}
    ]
    assert not wrong, "\n".join(wrong)


def test_control_has_no_clock_no_io_no_log_and_no_global_random():
    wrong = [
        f"{relative(file)}:{line}: {module} {name}"
        for file in FILES
        if relative(file).startswith("control/")
        for line, module, name in imports_in(tree_of(file).body, deep=True)
        if module.partition(".")[0] in IMPURE or (module == "random" and name != "Random")
    ]
    assert not wrong, "\n".join(wrong)


def test_files_get_their_name_in_one_module():
    """One atomic write: what is renamed into place is renamed by `atomic_files`.

    The others give a complete file or directory another name; they write nothing.
    """
    others = {
        "checkpoints/save.py",
        "observe/run_directory.py",
        "sandbox/root.py",
        "weights/shared_memory.py",
    }
    wrong = list[str]()
    for file in FILES:
        for node in ast.walk(tree_of(file)):
            if relative(file) in {"atomic_files.py", *others} or not isinstance(node, ast.Call):
                continue
            called = node.func
            if not isinstance(called, ast.Attribute):
                continue
            owner = called.value.id if isinstance(called.value, ast.Name) else ""
            is_rename = called.attr == "rename" and len(node.args) == 1
            is_replace = called.attr == "replace" and (
                owner in ("os", "shutil") or (len(node.args) == 1 and not node.keywords)
            )
            if (is_rename or is_replace) and owner != "dataclasses":
                wrong.append(f"{relative(file)}:{node.lineno}: {ast.unparse(node)}")
    assert not wrong, "\n".join(wrong)


def test_only_the_codec_turns_types_into_json():
    """One codec: pydantic's adapters are made in `serialization`, and for a config's values."""
    wrong = [
        relative(file)
        for file in FILES
        if not relative(file).startswith(("serialization", "config/", "training/options"))
        for _, module, name in imports_in(tree_of(file).body, deep=True)
        if module == "pydantic" and name == "TypeAdapter"
    ]
    assert not wrong


def loaded_by(statement: str, names: tuple[str, ...]) -> list[str]:
    """Return which modules, or packages of ours, are loaded after a statement."""
    code = f"{statement}\nimport sys\nprint([n for n in {names} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return ast.literal_eval(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "module",
    ["rollart", "rollart.api", "rollart.cli", "rollart.config", "rollart.observe.log"],
)
def test_light_modules_load_no_heavy_package(module: str):
    assert loaded_by(f"import {module}", HEAVY) == []


def test_a_config_is_loaded_without_the_simulator_and_the_planner():
    forbidden = ("rollart.sim", "rollart.planning", "rollart.cluster", "rollart.pipelines", *HEAVY)
    assert loaded_by("import rollart.config", forbidden) == []


def test_help_loads_neither_pydantic_nor_rich_nor_numpy():
    ask = "from rollart.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass"
    heavy = ("pydantic", "rich", "numpy", "torch", "rollart.config", "rollart.cli.train")
    assert loaded_by(ask, heavy) == []


def unset_keys(cls: type, tables: list[dict[str, Any]], prefix: str = "") -> Iterator[str]:
    """Yield the keys of an option class that none of these tables sets."""
    for key, hint in field_types(cls).items():
        values = [table[key] for table in tables if key in table]
        kind, options = chosen_kind(cls, key), option_class(hint)
        if kind is not None:
            for name in BUILT_IN[kind]:  # what plug-ins add is theirs to show
                yield from unset_keys(find(kind, name, field=key), values, f"{prefix}{key}.")
        elif options is None:
            if not values:
                yield prefix + key
        elif options is hint:
            yield from unset_keys(options, values, f"{prefix}{key}.")
        else:
            named = [each for value in values for each in value.values()]
            yield from unset_keys(options, named, f"{prefix}{key}.NAME.")


def test_an_example_sets_every_key_of_a_config():
    examples = (ROOT / "examples").rglob("*.toml")
    tables = [tomllib.loads(file.read_text(encoding="utf-8")) for file in examples]
    unset = sorted(set(unset_keys(Config, tables)))
    fix = "set it in examples/reference.toml, or make it a constant"
    assert not unset, f"no example sets {', '.join(unset)}: {fix}"


def test_the_reference_says_what_each_of_its_keys_is():
    lines = (ROOT / "examples" / "reference.toml").read_text(encoding="utf-8").splitlines()
    bare = [line for line in lines if re.match(r"\w+ =", line) and "  # " not in line]
    assert not bare, "\n".join(bare)


def mirrored(test: Path) -> bool:
    """Say whether a module or package of the source has this test's name, or its beginning."""
    folder = SOURCE / test.relative_to(TESTS).parent
    words = test.stem.removeprefix("test_").split("_")
    names = ["_".join(words[:count]) for count in range(len(words), 0, -1)]
    return any((folder / f"{name}.py").is_file() or (folder / name).is_dir() for name in names)


def test_tests_mirror_the_source_path_for_path():
    lost = [
        str(test.relative_to(TESTS))
        for test in sorted(TESTS.rglob("test_*.py"))
        if test.relative_to(TESTS).parts[0] not in UNMIRRORED
        and test.parent != TESTS
        and test.stem.removeprefix("test_") not in WHOLE
        and not mirrored(test)
    ]
    assert not lost, "\n".join(lost)


def public_classes(file: Path) -> Iterator[ast.ClassDef]:
    for node in tree_of(file).body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node


@pytest.mark.parametrize("name", ["ports.py", "api.py", "events.py"])
def test_every_port_and_public_value_has_an_example(name: str):
    bare = [
        node.name
        for node in public_classes(SOURCE / name)
        if "Example:" not in (ast.get_docstring(node) or "")
    ]
    assert not bare
