"""An engine of one's own: one class in one module, named in the config."""

import json
import re

import pytest

from rollart.cli import main
from rollart.config import check_names, load_config
from rollart.config.checks import engine_options
from rollart.errors import ConfigError
from rollart.inference.factory import find_engine, open_engine
from rollart.inference.scripted import ScriptedEngine, ScriptedEngineOptions
from rollart.inference.torch.engine import TorchEngine
from rollart.types import Version

MODULE = """
from dataclasses import dataclass

from rollart.inference.scripted import ScriptedEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class ParrotOptions:
    tokens: tuple[int, ...] = (5, 6)
    max_length: int = 64


class Parrot(ScriptedEngine):
    Options = ParrotOptions

    @classmethod
    def open(cls, model, *, options, version, threads):
        assert (model / "config.json").is_file()
        return cls(tokens=options.tokens, version=version)


class Plain:
    @classmethod
    def open(cls, model, *, options, version, threads):
        return ScriptedEngine(version=version)


class Shut:
    pass


class Loose(Plain):
    Options = dict
"""
CONFIG = """
[run]
name = "small"
steps = 2
environments = 2
checkpoint_every = 0
evaluate_episodes = 0

[model]
path = "tiny:0.2M"
warm_start = false

[tasks.lake]
env = "frozen_lake"
max_turns = 2
max_tokens = 64

[sampling]
max_tokens = 3

[engine]
name = "my_engines:Parrot"

[engine.options]
tokens = [7, 8, 9]

[batching]
groups_per_step = 1
group_size = 2

[training]
threads = 1
"""


@pytest.fixture
def small(tmp_path, monkeypatch):
    (tmp_path / "my_engines.py").write_text(MODULE)
    file = tmp_path / "small.toml"
    file.write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("ROLLART_CACHE", str(tmp_path / "cache"))
    return file


def test_a_run_trains_with_an_engine_from_a_users_module(small, tmp_path):
    assert main(["train", str(small)]) == 0
    written = (tmp_path / "runs/small/metrics.jsonl").read_text()
    assert max(json.loads(line).get("step", 0) for line in written.splitlines()) == 2
    log = "".join(each.read_text() for each in (tmp_path / "runs/small").glob("*.jsonl"))
    assert "Parrot-0" in log


def test_the_built_in_engines_are_found_by_name(tmp_path):
    assert find_engine("torch") is TorchEngine
    assert find_engine("scripted") is ScriptedEngine
    options = ScriptedEngineOptions(tokens=(3,))
    engine = open_engine("scripted", options=options, model=tmp_path, version=Version(4), threads=1)
    assert engine.version == 4


def test_the_options_of_an_engine_are_checked_against_its_own_class(small):
    assert engine_options(load_config(small)).tokens == (7, 8, 9)
    assert engine_options(load_config(small, ["engine.name=torch", "engine.options={}"])).rows == 64
    plain = load_config(small, ["engine.name=my_engines:Plain", "engine.options={}"])
    assert engine_options(plain) is None


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["engine.options.tokenz=[1]"], "engine.options.tokenz = [1]: unknown key; did you mean "),
        (["engine.options.tokens=3"], "engine.options.tokens = 3: must be a list, each a whole"),
        (["engine.name=my_engines:Parot"], "engine.name = 'my_engines:Parot': my_engines has no"),
        (["engine.name=no_engines:Parrot"], "engine.name = 'no_engines:Parrot': no module"),
        (["engine.name=my_engines:Shut"], "it has no classmethod open(model, *, options, version"),
        (["engine.name=my_engines:Loose"], "its Options must be a dataclass"),
        (
            ["engine.name=my_engines:Plain"],
            "engine.options = {'tokens': [7, 8, 9]}: Plain takes",
        ),
        (
            ["engine.name=scripted", "engine.options.rows=0"],
            "engine.options.rows = 0: must be at",
        ),
        (["tasks.lake.max_tokens=65"], "must be at most engine.options.max_length (64); lower it"),
        (
            ["engine.name=torhc"],
            "engine.name = 'torhc': no such engine; did you mean torch? Shipped: torch, s",
        ),
        (["engine.name=torch"], "write its keys under [engine.torch]"),
    ],
)
def test_what_is_wrong_is_named_by_the_key_that_was_written(small, overrides, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        check_names(load_config(small, overrides))
