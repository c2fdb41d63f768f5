"""Places for buckets, kept for all tests of the folder."""

import pytest
from places import TOKEN, opened_places

from rollart.weights.blobs.relay import TOKEN_VARIABLE


@pytest.fixture(scope="session")
def places(tmp_path_factory):
    with opened_places(tmp_path_factory.mktemp("mooncake") / "log") as places:
        yield places


@pytest.fixture(autouse=True)
def token(monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, TOKEN)
