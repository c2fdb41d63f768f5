"""An actor, and the process that may hold it: `python -m rollart.cluster.local_worker FD FD PID`.

The process reads one frame, does what it says and writes one frame, in order, until the stop
frame or the end of its pipe; it does not outlive its parent (`cluster.child_process`). It ignores
SIGINT and SIGTERM, which may be sent to a whole job and are the parent's to handle. What it prints
goes to the parent.
"""

import contextlib
import faulthandler
import importlib
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rollart import errors
from rollart.cluster.child_process import prepare_child
from rollart.errors import ActorDiedError, ActorError, ConfigError, RollartError
from rollart.serialization.codec import CodecError
from rollart.serialization.frames import CutFrameError, write_pieces
from rollart.serialization.values import encode, read_frame
from rollart.types import Json

_NOT_PASSED_ON = (RollartError, ActorError, ActorDiedError)


class Shown:
    """Stands for a value that could not cross a pipe: it has the same `repr`."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class Actor:
    """An object made from `module:Class` and JSON options, whose methods are called by name."""

    def __init__(self, target: str, options: Mapping[str, Json]) -> None:
        self._object = load_class(target)(**options)

    def call(self, method: str, args: Sequence[object]) -> Any:
        """Run a public method."""
        if method.startswith("_"):
            raise AttributeError(f"{method!r} is private to {type(self._object).__qualname__}")
        return getattr(self._object, method)(*args)

    def close(self) -> Any:
        """Let the object close itself, if it can; return what that returns."""
        close = getattr(self._object, "close", None)
        return close() if callable(close) else None


def load_class(target: str) -> Callable[..., Any]:
    """Import `module:Class`."""
    module_name, _, class_name = target.partition(":")
    if not module_name or not class_name:
        raise ConfigError("target", target, "write it as module:Class")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise ConfigError("target", target, f"there is no module {error.name!r}") from error
    if not hasattr(module, class_name):
        raise ConfigError("target", target, f"module {module_name!r} has no {class_name!r}")
    return getattr(module, class_name)


def nearest_error(error: BaseException) -> type[RollartError] | None:
    """Return the class of the project's error tree that an exception is, if any but the root."""
    if type(error) is RollartError:
        return RollartError
    for kind in type(error).__mro__:
        # An actor's death is that of the one it called: its caller must not take it for this one's.
        if kind.__module__ == errors.__name__ and kind not in _NOT_PASSED_ON:
            return kind
    return None


def describe(error: BaseException) -> dict[str, object]:
    """Return what the parent needs to raise the error again."""
    kind = nearest_error(error)
    described: dict[str, object] = {
        "kind": kind.__name__ if kind is not None else None,
        "message": f"{type(error).__name__}: {error}" if kind is None else str(error),
        "traceback": "".join(traceback.format_exception(error)),
    }
    if isinstance(error, ConfigError):
        described["field"], described["fix"] = error.field, error.fix
        described["shown"] = repr(error.value)
        if _can_cross(error.value):
            described["value"] = error.value
    return described


def restore(described: Mapping[str, Any]) -> RollartError | None:
    """Return the error that was described, None if it is not of the project's tree."""
    match described["kind"]:
        case None:
            return None
        case "ConfigError":
            value = described["value"] if "value" in described else Shown(described["shown"])
            error = ConfigError(described["field"], value, described["fix"])
        case name:
            error = getattr(errors, name)(described["message"])
    error.add_note(described["traceback"])
    return error


def serve(read_fd: int, write_fd: int) -> None:
    """Make the actor that the first frame names, then answer calls until the stop frame."""
    target, options, path = read_frame(read_fd)
    sys.path[:] = path
    made: list[Actor] = []
    _answer(write_fd, lambda: made.append(Actor(target, options)))
    if made:
        while _serve_call(made[0], read_fd, write_fd):
            pass
        _answer(write_fd, lambda: _close(made[0]))


def _serve_call(actor: Actor, read_fd: int, write_fd: int) -> bool:
    request = read_frame(read_fd)
    if request is not None:
        _answer(write_fd, lambda: actor.call(*request))
    return request is not None


def _answer(write_fd: int, work: Callable[[], Any]) -> None:
    try:
        reply = encode(("result", work()))
    except (Exception, SystemExit) as error:
        reply = encode(("error", describe(error)))
    write_pieces(write_fd, reply)


def _close(actor: Actor) -> None:
    actor.close()


def _can_cross(value: object) -> bool:
    try:
        encode(value)
    except CodecError:
        return False
    return True


def main() -> None:
    """Serve the two pipes named on the command line."""
    read_fd, write_fd, parent_pid = (int(argument) for argument in sys.argv[1:])
    ignored = (signal.SIGINT, signal.SIGTERM)
    prepare_child(parent_pid, ignored=ignored, fds=(read_fd, write_fd))
    faulthandler.enable()
    # The parent closed the pipes, or died, perhaps in the middle of a frame: nobody listens.
    with contextlib.suppress(EOFError, CutFrameError, BrokenPipeError):
        serve(read_fd, write_fd)


if __name__ == "__main__":
    main()
