from pathlib import Path

import pytest

from rollart.config import dump_toml, load_config

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_shipped_config_loads_and_survives_being_written(path, tmp_path):
    config = load_config(path)
    copy = tmp_path / "config.toml"
    copy.write_text(dump_toml(config))
    assert config.run.name == path.stem
    assert load_config(copy) == config


def test_the_custom_environment_takes_under_30_lines():
    assert len((EXAMPLES / "custom_env.py").read_text().splitlines()) < 30
