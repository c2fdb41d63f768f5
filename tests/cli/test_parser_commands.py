"""A command of an installed package."""

from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from rollart.cli import main
from rollart.cli.parser import all_commands

MODULE = """
def add_wave(parser):
    parser.add_argument("--at", default="all")

def run_wave(arguments):
    print(f"waving at {arguments.at}")
    return 7
"""


@pytest.fixture
def wave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "waving_package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "commands.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    entry = EntryPoint(name="wave", value="waving_package.commands", group="rollart.commands")
    monkeypatch.setattr("rollart.plugins.entry_points", lambda group: [entry])
    all_commands.cache_clear()
    yield
    all_commands.cache_clear()


@pytest.mark.usefixtures("wave")
def test_it_is_run_and_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wave", "--at", "you"]) == 7
    assert "waving at you" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "wave ..." in capsys.readouterr().out


@pytest.mark.usefixtures("wave")
def test_a_command_that_does_not_exist_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wav"]) == 2
    assert "did you mean wave?" in capsys.readouterr().err
