"""The entry point: parse, run one command, turn whatever happens into an exit code.

0 done, 1 a bug, 2 the user can fix it (one message, no traceback), 130 interrupted, 143 terminated,
141 the reader of the output closed it. With ROLLART_DEBUG set every error keeps its traceback.
"""

import contextlib
import errno
import os
import sys
import threading
import time
from collections.abc import Sequence
from typing import NoReturn

from rollart.cli.output import complain
from rollart.cli.parser import parse, run_command
from rollart.errors import UserError

EXTRAS = {
    "torch": "train",
    "transformers": "train",
    "tokenizers": "train",
    "safetensors": "train",
    "tensorboardX": "train",
    "matplotlib": "train",
    "trl": "bench",
    "httpx": "rewards",
    "uvicorn": "rewards",
    "boto3": "lambda",
    "ray": "ray",
    "peft": "lora",
    "fsspec": "files",
    "mooncake": "mooncake",
    "math_verify": "math",
    "metaworld": "robot",
    "gymnasium_robotics": "robot",
    "mujoco": "robot",
    "h5py": "robot",
}
"""Which extra brings a package that a command may miss."""
_REFUSALS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}
"""What a disk answers that is full or not the user's to write: no fault of the program."""
_LEAVING_S = 10.0
"""Longest the process lives after its command: a thread that hangs must not keep it for ever."""


def console() -> NoReturn:
    """Run the command line as a program."""
    code = main()
    with contextlib.suppress(OSError, ValueError):  # before it waits for threads
        sys.stdout.flush()
        sys.stderr.flush()
    threading.Thread(target=_leave, args=(code,), daemon=True).start()
    sys.exit(code)


def _leave(code: int) -> None:
    time.sleep(_LEAVING_S)
    os._exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    # Threads that wait asleep: spinning ones slow a busy machine twentyfold. Before torch loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if os.environ.get("ROLLART_DEBUG"):
        return _run(argv)
    try:
        return _run(argv)
    except KeyboardInterrupt:
        complain("interrupted")
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except Exception as error:
        return _explain(error)


def _run(argv: Sequence[str] | None) -> int:
    return run_command(parse(sys.argv[1:] if argv is None else argv))


def _explain(error: Exception) -> int:
    """Report an error and return the exit code: 2 if the user can fix it, else 1."""
    if isinstance(error, UserError):
        complain(str(error))
        return 2
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        package = error.name.partition(".")[0]
        if package in EXTRAS:
            complain(f"this needs {package}: pip install 'rollart[{EXTRAS[package]}]'")
            return 2
    if isinstance(error, OSError) and error.errno in _REFUSALS:
        complain(f"{error}: make room or choose another directory")
        return 2
    complain(f"{type(error).__name__}: {error}")
    sys.stderr.write("This is a bug in rollart. Set ROLLART_DEBUG=1 to see where it happened.\n")
    return 1
