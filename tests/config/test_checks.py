import re
import sys

import pytest

from rollart.config import check_names, load_config
from rollart.config.checks import find_parser
from rollart.errors import ConfigError

ENVS = """
import threading

class Plain:
    def reset(self, seed, task): ...
    def step(self, action): ...

class Unmade(Plain):
    def __init__(self):
        threading.Event().wait()

class Wordy(Plain):
    def suggest(self, observation): ...

class Short(Plain):
    def reset(self, seed): ...

def find_nothing(): ...
async def find_late(text): ...
def find_many(text):
    yield text
"""


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Return a loader of a config with overrides, next to environments of its own."""
    file = tmp_path / "run.toml"
    file.write_text('[tasks.lake]\nenv = "frozen_lake"\n')
    (tmp_path / "checked_envs.py").write_text(ENVS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda *overrides: load_config(file, overrides)
    sys.modules.pop("checked_envs", None)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("env=pond", "tasks.lake.env = 'pond': no such environment; shipped: "),
        ("options.dataset_name=x", "tasks.lake.options.dataset_name = 'x': frozen_lake has no "),
        ("options.size=99", "tasks.lake.options.size = 99: must be a whole number"),
        ("options.name=x", "tasks.lake.options.name = 'x': frozen_lake has no option name"),
    ],
)
def test_what_is_wrong_is_named_by_its_key_in_the_config(load, override, said):
    with pytest.raises(ConfigError) as caught:
        check_names(load(f"tasks.lake.{override}"))
    assert str(caught.value).startswith(said)


def test_an_environment_that_cannot_be_made_is_named_and_not_waited_for(load):
    config = load("tasks.lake.env='checked_envs:Unmade'", "tasks.lake.reset_timeout_s=0.3")
    with pytest.raises(ConfigError) as caught:
        check_names(config)
    assert str(caught.value) == (
        "tasks.lake.env = 'checked_envs:Unmade': __init__ took more than 0.3 s"
    )


def test_only_an_environment_that_is_trained_on_must_be_demonstrated(load):
    config = load("tasks.lake.env='checked_envs:Plain'")
    check_names(config, is_trained=False)
    with pytest.raises(
        ConfigError, match=r"has no method suggest\(\) -> str, whose actions the warm "
    ):
        check_names(config)


def test_a_suggestion_is_called_only_where_one_is_imitated(load):
    config = load("tasks.lake.env='checked_envs:Wordy'")
    with pytest.raises(ConfigError, match=r"suggest\(self, observation\) cannot be called as sug"):
        check_names(config)
    check_names(load("tasks.lake.env='checked_envs:Wordy'", "model.warm_start=false"))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "env=checked_envs:Short",
            "tasks.lake.env = 'checked_envs:Short': reset(self, seed) cannot be called as "
            "reset(seed, task): write def reset(self, seed, task)",
        ),
        (
            "parser=checked_envs:find_nothing",
            "tasks.lake.parser = 'checked_envs:find_nothing': find_nothing() cannot be called as "
            "find_nothing(text): write def find_nothing(text)",
        ),
        (
            "parser=checked_envs:find_many",
            "tasks.lake.parser = 'checked_envs:find_many': find_many yields, so calling it gives "
            "a generator: return the value instead",
        ),
        (
            "parser=checked_envs:find_late",
            "tasks.lake.parser = 'checked_envs:find_late': a parser is not awaited: write "
            "def find_late(text), without async",
        ),
    ],
)
def test_what_cannot_be_called_as_it_will_be_is_refused(load, override, said):
    with pytest.raises(ConfigError) as caught:
        check_names(load(f"tasks.lake.{override}"))
    assert str(caught.value) == said


def test_a_parser_may_be_a_function_of_a_file(load, tmp_path):
    file = tmp_path / "parsers.py"
    file.write_text("def last(text):\n    return text.split()[-1]\n")
    config = load(f"tasks.lake.parser='{file}:last'")
    check_names(config)
    assert find_parser(config.tasks["lake"].parser, field="parser")("go left") == "left"


@pytest.mark.parametrize(
    ("parser", "said"),
    [
        ("no_parsers:last", "no module no_parsers here or installed"),
        ("checked_envs:find_it", "checked_envs has no function find_it; it has find_nothing, "),
        ("/nowhere/parsers.py:last", "there is no file /nowhere/parsers.py"),
    ],
)
def test_a_parser_that_is_not_there_is_named(load, parser, said):
    with pytest.raises(ConfigError) as caught:
        check_names(load(f"tasks.lake.parser='{parser}'"))
    assert str(caught.value).startswith(f"tasks.lake.parser = '{parser}': {said}")


def test_a_parser_without_a_signature_is_taken(load):
    check_names(load("tasks.lake.parser=builtins:str"))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        (
            "tasks.lake.env=frozen_lak",
            "tasks.lake.env = 'frozen_lak': no such environment; did you mean frozen_lake? ",
        ),
        ("tasks.lake.env=no_games:Lake", "tasks.lake.env = 'no_games:Lake': no module no_games"),
        ("weights.store=no_stores:Box", "weights.store = 'no_stores:Box': no module no_stores"),
        ("engine.name=no_engines:Box", "engine.name = 'no_engines:Box': no module no_engines"),
    ],
)
def test_a_name_that_is_nothing_is_refused_by_the_key_it_was_written_for(tmp_path, override, said):
    file = tmp_path / "run.toml"
    file.write_text('[tasks.lake]\nenv = "frozen_lake"\n[weights]\nstore = "files"\nplace = "/x"\n')
    with pytest.raises(ConfigError, match=re.escape(said)):
        check_names(load_config(file, [override]))
