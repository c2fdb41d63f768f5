"""The layers: a module imports only from layers below its own; see docs/architecture.md."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from checkout import ROOT

SOURCE = ROOT / "src" / "rollart"

WORDS = {
    "errors",
    "types",
    "events",
    "ports",
    "clock",
    "seeds",
    "contract",
    "cluster",
    "sharing",
    "importing",
    "directories",
}
ADAPTERS = {"engines", "envs", "models", "training", "weights", "observe", "sandbox", "rewards"}
EDGES = {"config", "build", "cli", "replay", "offering"}
MAY_IMPORT = {
    "": set(),
    **dict.fromkeys(WORDS, WORDS),
    "control": WORDS | {"control"},
    **{name: WORDS | {name} for name in ADAPTERS},
    "rewards": WORDS | {"rewards", "control"},
    "engines": WORDS | {"engines", "models"},
    "training": WORDS | {"training", "models"},
    "runtime": WORDS | {"control", "observe", "runtime"},
    "sim": WORDS | {"control", "observe", "sim"},
    "on_ray": WORDS | {"control", "observe", "runtime", "rewards", "on_ray"},
    "planning": WORDS | {"control", "sim", "planning"},
    **dict.fromkeys(
        EDGES, {"", "runtime", "sim", "planning", "control", "on_ray"} | WORDS | ADAPTERS | EDGES
    ),
}
"""What each part of the package may import of the package; a new part is placed here."""
IMPURE = {"asyncio", "time", "logging", "datetime", "os", "io", "pathlib", "threading", "secrets"}
"""What control may not import: it has no clock, no I/O, no log."""
GLOBAL_RANDOM = "random"
"""Of this module control may use the class Random only."""


@dataclass(frozen=True)
class Import:
    """One import of a module, and where it is written."""

    file: Path
    line: int
    target: str

    @property
    def part(self) -> str:
        """The part of the package that is imported."""
        return self.target.partition(".")[2].partition(".")[0]

    def __str__(self) -> str:
        return f"src/rollart/{self.file.relative_to(SOURCE)}:{self.line}: imports {self.target}"


def part_of(file: Path) -> str:
    first = file.relative_to(SOURCE).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def imports_of(file: Path) -> Iterator[Import]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(file, node.lineno, alias.name)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative import"
            module = node.module or ""
            for alias in node.names:
                yield Import(file, node.lineno, f"{module}.{alias.name}")


FILES = sorted(SOURCE.rglob("*.py"))


def is_ours(found: Import) -> bool:
    return found.target == "rollart" or found.target.startswith("rollart.")


def is_outside_standard_library(found: Import) -> bool:
    return not is_ours(found) and found.target.partition(".")[0] not in sys.stdlib_module_names


def is_type_only(found: Import) -> bool:
    """ports.py names numpy for the type checker; nothing is imported when it runs."""
    return found.file.name == "ports.py" and found.target == "numpy"


def test_every_part_of_the_package_has_a_layer():
    assert {part_of(file) for file in FILES} <= MAY_IMPORT.keys()


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_a_module_imports_only_from_layers_below(file: Path):
    part = part_of(file)
    allowed = MAY_IMPORT[part]
    wrong = [
        f"{found}; {part or 'rollart'} may import {', '.join(sorted(allowed)) or 'nothing'}"
        for found in imports_of(file)
        if is_ours(found) and not (found.part in allowed or (found.part == "__version__"))
    ]
    assert not wrong, "\n".join(wrong)


def test_words_and_control_need_the_standard_library_only():
    wrong = [
        str(found)
        for file in FILES
        if part_of(file) in WORDS | {"control", ""}
        for found in imports_of(file)
        if is_outside_standard_library(found) and not is_type_only(found)
    ]
    assert not wrong, "\n".join(wrong)


def test_control_has_no_clock_no_io_no_log_and_no_global_random():
    wrong: list[str] = []
    for file in FILES:
        if part_of(file) != "control":
            continue
        for found in imports_of(file):
            root, _, name = found.target.partition(".")
            if root in IMPURE or (root == GLOBAL_RANDOM and name != "Random"):
                wrong.append(str(found))
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "statement",
    ["import rollart", "import rollart.cli", "import rollart.config", "import rollart.observe.log"],
)
def test_light_modules_load_no_heavy_package(statement: str):
    heavy = ("torch", "transformers", "ray", "matplotlib", "tensorboardX")
    code = f"{statement}\nimport sys\nprint([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_loads_neither_pydantic_nor_rich_nor_numpy():
    heavy = ("pydantic", "rich", "numpy", "torch")
    code = (
        "import sys\nfrom rollart.cli import main\ntry:\n    main(['--help'])\n"
        f"except SystemExit:\n    pass\nprint([n for n in {heavy} if n in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
