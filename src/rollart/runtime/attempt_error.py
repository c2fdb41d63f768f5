"""AttemptError: why an attempt cannot go on, as data and in words for the user."""

import sys
import traceback
from pathlib import Path

from rollart.errors import RollartError
from rollart.types import Failure, FailureKind


class AttemptError(RollartError):
    """An attempt cannot go on; carries the failure as data."""

    def __init__(self, kind: FailureKind, message: str) -> None:
        self.failure = Failure(kind=kind, message=message)
        super().__init__(message)


def where_raised(error: BaseException, env: object) -> str:
    """Return the line of the environment's own file that raised, or else the innermost one."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return ""
    own = getattr(sys.modules.get(type(env).__module__), "__file__", None)
    frame = next((each for each in reversed(frames) if each.filename == own), frames[-1])
    return f" ({Path(frame.filename).name}:{frame.lineno})"
