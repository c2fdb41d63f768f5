"""Configuration: TOML files and `key=value` overrides in, one frozen `Config` out."""

from rollart.config.explaining import explain
from rollart.config.loading import load_config
from rollart.config.schema import (
    Config,
    EngineOptions,
    RunOptions,
    TaskOptions,
    WeightOptions,
)
from rollart.config.writing import dump_toml

__all__ = [
    "Config",
    "EngineOptions",
    "RunOptions",
    "TaskOptions",
    "WeightOptions",
    "dump_toml",
    "explain",
    "load_config",
]
