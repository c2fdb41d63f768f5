"""What a config names, inside a directory that the user does not trust."""

import sys
from pathlib import Path

import pytest

from rollart import read_run
from rollart.cli.entry import main
from rollart.errors import ConfigError, UserError
from rollart.models.files import indexed_files
from rollart.pipelines.evaluation import evaluate
from rollart.plugins import distrusting, load_module, load_object

CODE = """
from dataclasses import dataclass
from pathlib import Path

Path(__file__).with_name("was_run").touch()

@dataclass(frozen=True)
class Thing:
    pass
"""
CONFIG = """
[tasks.lake]
env = "frozen_lake"
"""


@pytest.fixture
def directory(tmp_path, monkeypatch) -> Path:
    """A run's directory from elsewhere, with code in it."""
    run = tmp_path / "run"
    (run / "checkpoints" / "step-000001").mkdir(parents=True)
    (run / "checkpoints" / "step-000001" / "run.json").write_text("{}")
    (run / "config.toml").write_text(CONFIG)
    (run / "hidden_code.py").write_text(CODE)
    (run / "hidden_package").mkdir()
    (run / "hidden_package" / "__init__.py").write_text(CODE)
    (run / "hidden_package" / "inner.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return run


def was_run(directory: Path) -> bool:
    return bool(list(directory.rglob("was_run")))


NAMES = ["run/hidden_code.py:Thing", "hidden_code:Thing", "hidden_package.inner:Thing"]
KEYS = [
    "algorithm.type",
    "policy.type",
    "tasks.lake.env",
    "tasks.lake.parser",
    "tasks.lake.player",
    "engine.name",
    "weights.store",
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("key", KEYS)
def test_reading_a_run_runs_no_code_in_its_directory(directory, key, name):
    section, _, last = key.rpartition(".")
    text = CONFIG if section == "tasks.lake" else f"{CONFIG}\n[{section}]\n"
    if key == "tasks.lake.env":
        text = "[tasks.lake]\n"
    (directory / "config.toml").write_text(f'{text}{last} = "{name}"\n')
    with pytest.raises(UserError):
        evaluate(directory, [], 1, None)
    assert main(["train", "--resume", str(directory)]) == 2
    assert main(["eval", str(directory)]) == 2
    assert not was_run(directory)
    assert not [each for each in sys.path if Path(each).is_relative_to(directory)]


@pytest.mark.parametrize("here", ["outside", "inside"])
def test_the_refusal_names_the_key_the_code_and_the_way_out(directory, here, monkeypatch):
    if here == "inside":
        monkeypatch.chdir(directory)
    text = f'{CONFIG}\n[algorithm]\ntype = "hidden_code:Thing"\n'
    (directory / "config.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        evaluate(directory, [], 1, None)
    code = directory / "hidden_code.py"
    assert str(caught.value).startswith(
        f"algorithm.type = 'hidden_code:Thing': {code} is code inside {directory}, which reading "
        "that directory would run: look at it, then add --trust (in Python: trust=True)"
    )
    with pytest.raises(ConfigError, match="--trust"):
        _ = read_run(directory).config
    assert not was_run(directory)


def test_code_that_is_trusted_is_run(directory):
    text = f'{CONFIG}\n[algorithm]\ntype = "run/hidden_code.py:Thing"\n'
    (directory / "config.toml").write_text(text)
    with pytest.raises(UserError):  # the checkpoint is damaged
        evaluate(directory, [], 1, None, trust=True)
    assert was_run(directory)


def test_code_outside_the_directory_needs_no_trust(directory, tmp_path):
    (tmp_path / "own_code.py").write_text("class Env:\n    pass\n")
    with distrusting(directory):
        assert load_object("own_code.py:Env", field="f", what="class").__name__ == "Env"
        assert load_module("own_code", field="f").__name__ == "own_code"
        with pytest.raises(ConfigError, match="no module nowhere here or installed"):
            load_module("nowhere", field="f")
    assert not was_run(directory)
    assert load_module("run/hidden_code.py", field="f")
    assert was_run(directory)


def test_a_link_into_the_directory_is_seen_through(directory, tmp_path):
    (tmp_path / "link").symlink_to(directory)
    with distrusting(tmp_path / "link"), pytest.raises(ConfigError, match="--trust"):
        load_module("run/hidden_code.py", field="f")
    with distrusting(directory), pytest.raises(ConfigError, match="--trust"):
        load_module("link/hidden_code.py", field="f")


@pytest.mark.parametrize("name", ["../weights", "/etc/passwd", "a/../../b", "", 3, None, "a\0b"])
def test_an_index_names_no_file_outside_its_directory(name):
    with pytest.raises(ValueError, match="which is not a file of the directory"):
        indexed_files({"weight_map": {"x": "model.safetensors", "y": name}})


def test_an_index_without_a_map_is_refused():
    for index in ({}, {"weight_map": []}, {"weight_map": None}):
        with pytest.raises(ValueError, match="weight_map must be an object"):
            indexed_files(index)
    names = {"x": "b.safetensors", "y": "a.safetensors", "z": "b.safetensors"}
    assert indexed_files({"weight_map": names}) == ["a.safetensors", "b.safetensors"]
