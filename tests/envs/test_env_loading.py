import sys

import pytest

from rollart.envs.frozen_lake import FrozenLake
from rollart.envs.loading import load_env_class, make_env
from rollart.errors import ConfigError

OWN = """
class Echo:
    def __init__(self, *, greeting, loud=False):
        self.greeting = greeting

    def reset(self, seed, task):
        return self.greeting, {}

    def step(self, action):
        return action, 1.0, True, False, {}

class Half:
    def reset(self, seed, task):
        return "", {}

class Open:
    def __init__(self, **options):
        self.options = options
    reset = Echo.reset
    step = Echo.step
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "my_worlds.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("my_worlds", None)


def fix_of(call, *arguments, **options) -> str:
    with pytest.raises(ConfigError) as caught:
        call(*arguments, **options)
    return str(caught.value)


def test_a_shipped_environment_goes_by_its_short_name():
    assert load_env_class("frozen_lake") is FrozenLake


def test_a_user_names_module_and_class_in_the_current_directory(own):
    assert load_env_class("my_worlds:Echo").__name__ == "Echo"


def test_a_user_names_a_file_and_class_by_path(own, monkeypatch, tmp_path_factory):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    found = load_env_class(f"{own}/my_worlds.py:Echo")
    assert found is load_env_class(f"{own}/my_worlds.py:Echo")
    assert found(greeting="hi").reset(0, {}) == ("hi", {})


def test_an_unknown_name_suggests_the_nearest():
    assert fix_of(load_env_class, "frozenlake") == (
        "env.name = 'frozenlake': did you mean frozen_lake? shipped: frozen_lake, calculator, "
        "number_guess; your own: module:Class or path/to/file.py:Class"
    )
    assert "did you mean" not in fix_of(load_env_class, "chess")


def test_a_missing_file_module_or_class_is_named(own):
    assert "there is no file" in fix_of(load_env_class, "nowhere/env.py:Echo")
    assert "no module nowhere" in fix_of(load_env_class, "nowhere:Echo")
    message = fix_of(load_env_class, "my_worlds:Eco")
    assert message.endswith("my_worlds has no class Eco; it has Echo, Open")


def test_a_module_that_fails_to_import_says_why(own):
    (own / "broken.py").write_text("1 / 0\n")
    (own / "needy.py").write_text("import not_installed_here\n")
    assert "ZeroDivisionError: division by zero" in fix_of(load_env_class, "broken:Env")
    assert "ZeroDivisionError" in fix_of(load_env_class, "broken.py:Env")
    assert "No module named 'not_installed_here'" in fix_of(load_env_class, "needy:Env")


def test_a_class_of_the_wrong_shape_is_refused(own):
    message = fix_of(load_env_class, "my_worlds:Half")
    assert message.endswith(
        "Half has no method step; an environment has reset(seed, task) and step(action)"
    )


def test_options_are_checked_against_what_the_class_accepts(own):
    message = fix_of(make_env, "frozen_lake", options={"sise": 4})
    assert message == (
        "env.options.sise = 4: frozen_lake has no option sise; "
        "it accepts size, holes, slippery, view"
    )
    missing = fix_of(make_env, "my_worlds:Echo", options={})
    assert missing == "env.options.greeting = None: my_worlds:Echo needs this option"


def test_an_environment_may_take_any_option(own):
    assert make_env("my_worlds:Open", options={"any": 1}).options == {"any": 1}
