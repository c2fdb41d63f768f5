"""`rollart robot`: tasks, demos and play."""

from pathlib import Path

import pytest
from robot_runs import write_model

from rollart.cli import main
from rollart_robot.demonstrations import load_demonstrations


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("commands"))


def test_tasks_are_listed_with_suite_and_difficulty(capsys: pytest.CaptureFixture[str]):
    assert main(["robot", "tasks"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert len(lines) == 55
    assert ["toy-reach", "toy"] in lines
    assert ["pick-place", "metaworld", "hard"] in lines
    assert ["adroit-door", "adroit"] in lines


def test_demonstrations_are_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "made" / "reach.npz"
    assert main(["robot", "demos", "toy-reach", "--episodes", "3", "--out", str(path)]) == 0
    said = capsys.readouterr()
    assert f"{path}: 3 episodes" in said.out
    assert "toy-reach: 3 of 3" in said.err
    found = load_demonstrations(path)
    assert (found.task, len(found.episodes)) == ("toy-reach", 3)


def test_demonstrations_go_to_demos_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    assert main(["robot", "demos", "toy-reach", "--episodes", "2"]) == 0
    assert (tmp_path / "demos" / "toy-reach.npz").is_file()


def test_a_policy_plays_and_is_filmed(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    film, sheet = tmp_path / "play.gif", tmp_path / "sheet.png"
    arguments = ["robot", "play", str(model), "--task", "toy-reach", "--episodes", "2"]
    assert main(arguments) == 0
    plain = capsys.readouterr().out
    assert main([*arguments, "--save", str(film), "--sheet", str(sheet)]) == 0
    filmed = capsys.readouterr().out
    assert "of 2 episodes succeeded" in plain
    assert filmed.endswith(plain)
    assert film.read_bytes()[:4] == b"GIF8"
    assert sheet.read_bytes()[1:4] == b"PNG"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["demos", "pick-plaice"], "did you mean 'pick-place'"),
        (["demos", "toy-reach", "--episodes", "0"], "episodes"),
        (["demos", "adroit-door"], "--expert"),
        (["play", "nowhere", "--task", "toy-reach"], "there is no robot policy"),
        (["play", "MODEL", "--task", "toy-reach", "--episodes", "0"], "must be at least 1"),
        (["play", "MODEL", "--task", "adroit-door"], "have 6 numbers; this one's have 39"),
    ],
)
def test_bad_input_is_one_message(
    model: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
):
    given = [str(model) if each == "MODEL" else each for each in arguments]
    assert main(["robot", *given]) == 2
    error = capsys.readouterr().err.strip()
    assert said in error
    assert "Traceback" not in error
