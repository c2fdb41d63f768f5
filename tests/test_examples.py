import sys

import pytest
from checkout import ROOT

from rollart.config import add_import_paths, check_names, dump_toml, load_config

EXAMPLES = ROOT / "examples"
NEEDED = {"math_rewards": "math_verify"}
"""Packages without which an example cannot run."""
each_config = pytest.mark.parametrize(
    "path", sorted(EXAMPLES.rglob("*.toml")), ids=lambda path: path.stem
)


@each_config
def test_every_shipped_config_loads_and_survives_being_written(path, tmp_path):
    config = load_config(path)
    copy = tmp_path / "config.toml"
    copy.write_text(dump_toml(config))
    assert config.run.name == path.stem
    assert load_config(copy) == config


@each_config
def test_every_shipped_config_names_what_there_is(path, monkeypatch):
    if path.stem in NEEDED:
        pytest.importorskip(NEEDED[path.stem])
    monkeypatch.setattr(sys, "path", list(sys.path))
    config = load_config(path)
    add_import_paths(config)
    check_names(config)


def test_the_custom_environment_takes_under_30_lines():
    assert len((EXAMPLES / "custom_env.py").read_text().splitlines()) < 30
