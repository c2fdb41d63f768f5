"""The summary: what a run came to, as one small JSON file, whole or not there."""

import json
from collections.abc import Mapping
from pathlib import Path

from rollart.errors import StorageError
from rollart.types import Json


def write_summary(path: Path, values: Mapping[str, Json]) -> None:
    """Write the summary; readers see the old one or the new one, never half of it."""
    partial = path.with_suffix(".partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(dict(values), indent=2) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise StorageError(f"{path}: the summary cannot be written: {error}") from error
