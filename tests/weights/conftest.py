"""Bucket stores of every place."""

import pytest
from places import BUCKET_BYTES, PLACES

from rollart.weights.opening import open_store


@pytest.fixture(params=PLACES)
def place(request):
    """Return how to open the bytes of one place for a directory: kind and place."""
    return request.param


def url_of(place, directory):
    match place:
        case "fsspec_memory":
            return f"memory://{directory}"
        case "fsspec_local":
            return f"file://{directory}"
        case _:
            return str(directory)


@pytest.fixture
def open_bucket_store(request):
    """Return what opens the bucket store of a place at a directory."""
    place = request.node.callspec.params.get("open_at") or request.getfixturevalue("place")

    def open_at(directory, keep=2, **options):
        kind = "files"
        if place == "files_delta":
            options.setdefault("delta", True)
        options.setdefault("bucket_bytes", BUCKET_BYTES)
        return open_store(kind, url_of(place, directory), keep, **options)

    return open_at
