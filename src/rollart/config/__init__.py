"""Configuration: TOML files and `key=value` overrides in, one frozen `Config` out."""

from rollart.config.checks import check_names
from rollart.config.loader import add_import_paths, load_config, parse_override
from rollart.config.options import EngineOptions, RunOptions, TaskOptions, WeightOptions
from rollart.config.schema import Config
from rollart.config.writer import dump_toml, explain

__all__ = [
    "Config",
    "EngineOptions",
    "RunOptions",
    "TaskOptions",
    "WeightOptions",
    "add_import_paths",
    "check_names",
    "dump_toml",
    "explain",
    "load_config",
    "parse_override",
]
