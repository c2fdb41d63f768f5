import sys

import pytest

from rollart.envs.frozen_lake import FrozenLake
from rollart.envs.registry import env_source, load_env_class, make_env
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
        "env.name = 'frozenlake': no such environment; did you mean frozen_lake? Shipped: "
        "frozen_lake, calculator, number_guess, robot; or name your own as module:Class or "
        "path/to/file.py:Class"
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
    assert missing == "env.options.greeting: my_worlds:Echo needs this option"


def test_an_environment_may_take_any_option(own):
    assert make_env("my_worlds:Open", options={"any": 1}).options == {"any": 1}


CALLED = """
import functools
import types

class Good:
    def reset(self, seed, task): ...
    def step(self, action): ...

class ShortReset(Good):
    def reset(self, seed: int) -> tuple: ...

class NoAction(Good):
    def step(self): ...

class Gym(Good):
    def reset(self, *, seed=None, options=None): ...

class NoSelf(Good):
    def step(action): ...

class Yielding(Good):
    def step(self, action):
        yield "x"

class AsyncYielding(Good):
    async def step(self, action):
        yield "x"

class Wide(Good):
    def reset(self, *all, **more): ...
    def step(self, action, extra=1): ...

class Static(Good):
    @staticmethod
    def reset(seed, task): ...
    @classmethod
    def step(cls, action): ...

class ShortStatic(Good):
    @staticmethod
    def reset(seed): ...

class Wordy(Good):
    def suggest(self, observation): ...

class Native(dict, Good): ...

def filled(method):
    @functools.wraps(method)
    def call(self, action):
        return method(self, "db", action)
    return call

class Wrapped(Good):
    @filled
    def step(self, database, action): ...

class Partial(Good):
    def _step(self, database, action): ...
    step = functools.partialmethod(_step, "db")

class FromC(Good):
    step = max

class OldCoroutine(Good):
    @types.coroutine
    def step(self, action):
        yield
"""


@pytest.fixture
def called(own):
    (own / "called_worlds.py").write_text(CALLED)
    yield
    sys.modules.pop("called_worlds", None)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "ShortReset",
            "reset(self, seed) cannot be called as reset(seed, task): "
            "write def reset(self, seed, task)",
        ),
        (
            "NoAction",
            "step(self) cannot be called as step(action): write def step(self, action)",
        ),
        (
            "Gym",
            "reset(self, *, seed=None, options=None) cannot be called as reset(seed, task): "
            "write def reset(self, seed, task)",
        ),
        ("NoSelf", "step(action) cannot be called as step(action): write def step(self, action)"),
        (
            "ShortStatic",
            "reset(seed) cannot be called as reset(seed, task): write def reset(seed, task)",
        ),
        (
            "Yielding",
            "step yields, so calling it gives a generator: return the value instead",
        ),
        (
            "AsyncYielding",
            "step yields, so calling it gives a generator: return the value instead",
        ),
    ],
)
def test_a_method_that_cannot_be_called_as_it_will_be_is_refused(called, name, said):
    target = f"called_worlds:{name}"
    assert fix_of(load_env_class, target) == f"env.name = {target!r}: {said}"


@pytest.mark.parametrize(
    "name", ["Good", "Wide", "Static", "Wrapped", "Partial", "FromC", "OldCoroutine", "Wordy"]
)
def test_a_method_that_can_be_called_or_does_not_tell_passes(called, name):
    assert load_env_class(f"called_worlds:{name}").__name__ == name


def test_a_class_that_does_not_say_what_it_is_made_with_is_asked(called):
    assert make_env("called_worlds:Native", options={"size": 4})["size"] == 4


def test_the_source_of_a_class_without_a_file_is_its_compiled_methods(own, monkeypatch):
    """As of a program that is read from standard input, whose file is called <stdin>."""
    assert env_source("my_worlds:Echo") == OWN
    monkeypatch.setattr(sys.modules["my_worlds"], "__file__", "<stdin>")
    source = env_source("my_worlds:Echo")
    assert [line.split()[0] for line in source.splitlines()] == ["__init__", "reset", "step"]
