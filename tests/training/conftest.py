"""Tiny checkpoints, made once."""

from collections.abc import Callable
from pathlib import Path

import pytest
from training_samples import write_checkpoint


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def new_checkpoint(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Path]:
    def make(**shape: int) -> Path:
        return write_checkpoint(tmp_path_factory.mktemp("model") / "other", **shape)

    return make
