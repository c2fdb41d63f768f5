"""What a command is given for a run, and a run that is at work."""

import sys
from pathlib import Path

import pytest
from checkout import ROOT
from saved_run import save_step

from rollart.cli import main
from rollart.observe.run_directory import lock_directory

QUICKSTART = str(ROOT / "examples" / "quickstart.toml")


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Return a function that gives the error of a command line, said before torch is loaded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "rollart.pipelines.agentic", None)
    monkeypatch.setitem(sys.modules, "rollart.pipelines.evaluation", None)

    def run(*argv: str) -> str:
        capsys.readouterr()
        assert main(argv) == 2
        return capsys.readouterr().err.removeprefix("error: ").rstrip("\n")

    return run


@pytest.mark.parametrize(
    ("argv", "given"),
    [
        (["eval", "base.toml"], "base.toml"),
        (["train", "--resume", "base.toml"], "--resume base.toml"),
        (["train", QUICKSTART, "--resume", "base.toml"], "--resume base.toml"),
    ],
)
def test_a_file_is_no_run(refused, tmp_path, argv, given):
    (tmp_path / "base.toml").touch()
    assert refused(*argv) == (
        f"{given}: is a file; name a run's directory, e.g. runs/quickstart, or one of its "
        "checkpoints"
    )


def test_a_directory_that_is_no_run_is_not_said_to_be_one_that_ended(refused, tmp_path):
    (tmp_path / "photos").mkdir()
    said = (
        "photos: is neither a run's directory (no config.toml and no checkpoints/) nor a "
        "checkpoint (no run.json); name one, e.g. runs/quickstart"
    )
    assert refused("eval", "photos") == said
    assert refused("train", QUICKSTART, "--resume", "photos") == f"--resume {said}"


def test_a_run_that_saved_nothing_is_told_apart_from_one_at_work(refused, tmp_path):
    directory = tmp_path / "run"
    directory.mkdir()
    (directory / "config.toml").touch()
    assert "the run ended before anything was saved" in refused("eval", "run")
    with lock_directory(directory):
        said = refused("eval", "run")
    assert said.startswith("run: holds no checkpoint yet; process ")


def test_a_directory_in_use_is_refused_and_stays_as_it_is(refused, tmp_path):
    directory = tmp_path / "runs" / "quickstart"
    directory.mkdir(parents=True)
    (directory / "config.toml").write_text(Path(QUICKSTART).read_text())
    resume = ["train", "--resume", "runs/quickstart"]
    with lock_directory(directory):
        for argv in (["train", QUICKSTART], ["train", QUICKSTART, "--dry-run"], resume):
            said = refused(*argv)
            assert said.startswith("runs/quickstart is in use by process ")
            assert said.endswith("run.directory, or wait until it ends")
        simulated = refused("simulate", "scale", "--quick", "--out", "runs/quickstart")
        assert simulated.startswith("runs/quickstart is in use by process ")
        assert {path.name for path in directory.iterdir()} == {".lock", "config.toml"}
    assert [path.name for path in directory.parent.iterdir()] == ["quickstart"]


def test_a_dry_run_says_that_a_run_is_resumed_elsewhere(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_step(tmp_path / "m", 3)
    assert main(["train", QUICKSTART, "--resume", "m", "--dry-run"]) == 0
    shown = capsys.readouterr().out.splitlines()[0]
    assert shown.endswith("steps, resumed from m, which is not changed, in runs/quickstart")
