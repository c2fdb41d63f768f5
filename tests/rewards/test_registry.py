"""A reward function is found by name, and a wrong name or option is one clear message."""

from pathlib import Path

import pytest

from rollart.errors import ConfigError
from rollart.plugins import BUILT_IN
from rollart.rewards.registry import check_options, is_group_function, load_function


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(
        "def one(trajectory, *, bonus=0.0, needed): return 1.0\n"
        "def many(trajectories, **more): return [1.0]\n"
        "def none(): return 1.0\n"
        "def named(*, trajectory): return 1.0\n"
        "def two(trajectory, answer, /): return 1.0\n"
        "number = 3\n"
    )
    return path


def message(name: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load_function(name)
    return str(caught.value)


def test_a_file_is_loaded_once(file: Path):
    assert load_function(f"{file}:one") is load_function(f"{file}:one")


def test_a_module_is_found_in_the_current_directory(file: Path, monkeypatch):
    monkeypatch.chdir(file.parent)
    monkeypatch.syspath_prepend(str(file.parent))
    assert load_function("mine:one").__name__ == "one"


@pytest.mark.parametrize("name", sorted(BUILT_IN["reward"]))
def test_every_shipped_function_loads_and_says_what_it_takes(name: str):
    assert callable(load_function(name))
    assert is_group_function(name) in (True, False)


def test_the_first_parameter_says_whether_a_group_is_scored(file: Path):
    assert not is_group_function(f"{file}:one")
    assert is_group_function(f"{file}:many")


def test_options_are_checked_against_the_function(file: Path):
    check_options(f"{file}:one", {"needed": 1, "bonus": 2})
    check_options(f"{file}:many", {"anything": 1})
    with pytest.raises(ConfigError, match=r"reward.options.bonsu = 2: .* no option bonsu; .*bonus"):
        check_options(f"{file}:one", {"needed": 1, "bonsu": 2})
    with pytest.raises(ConfigError, match=r"reward.options.needed: .* needs this option"):
        check_options(f"{file}:one", {})


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("none", "too many positional arguments"),
        ("named", "too many positional arguments"),
        ("two", "missing a required argument: 'answer'"),
    ],
)
def test_a_function_that_takes_no_trajectory_is_refused_with_what_to_write(file: Path, name, why):
    with pytest.raises(ConfigError) as caught:
        check_options(f"{file}:{name}", {})
    assert str(caught.value) == (
        f"reward.function = '{file}:{name}': cannot be called with a trajectory ({why}): write "
        f"def {name}(trajectory, *, option=…), or with trajectories for a group"
    )


def test_a_name_near_a_shipped_one_is_guessed():
    assert "no such reward function; did you mean weighted? Shipped: " in message("wieghted")


def test_what_cannot_be_found_is_named(file: Path):
    assert "there is no file" in message("/nowhere/mine.py:one")
    assert "no module no_such_module_here here or installed" in message("no_such_module_here:score")
    assert "has no function three; it has one, many, none" in message(f"{file}:three")
    assert "has no function number" in message(f"{file}:number")


def test_a_file_that_cannot_be_imported_says_why(tmp_path: Path):
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0\n")
    assert f"importing {broken} failed: ZeroDivisionError: division by zero" in message(
        f"{broken}:f"
    )
    broken.write_text("import httpx.nothing_like_this\n")
    assert f"importing {broken} failed: ModuleNotFoundError" in message(f"{broken}:f")


def test_a_missing_package_of_an_extra_names_the_extra(tmp_path: Path, monkeypatch):
    (tmp_path / "wants.py").write_text("import math_verify\n")
    monkeypatch.setitem(__import__("sys").modules, "math_verify", None)
    assert message(f"{tmp_path}/wants.py:f").endswith("install rollart[math]")
