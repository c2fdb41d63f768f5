"""Where a model is: a directory of this machine, or a name on the model hub. Loads nothing."""

from pathlib import Path

from rollart.errors import ModelError
from rollart.models.options import TINY

_HUB_NAME_PARTS = 2


def local_model(path: str) -> Path | None:
    """Return the directory a path names; None for a hub name, and for a tiny model."""
    if path.startswith(TINY):
        return None
    local = Path(path).expanduser()
    if local.is_dir():
        return local
    if local.exists():
        raise ModelError(f"model.path = {path!r}: is a file; name the directory of a checkpoint")
    looks_local = local.is_absolute() or path.startswith((".", "~")) or path.endswith("/")
    if looks_local or path.count("/") >= _HUB_NAME_PARTS or not path:
        raise ModelError(f"model.path = {path!r}: there is no such directory")
    return None
