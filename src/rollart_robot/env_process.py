"""Environments in processes of their own: `[tasks.NAME] options = { processes = 2, … }`.

Threads of one process share a core: a step of Meta-World is mostly Python. With `processes` the
environments of this process are dealt to so many children by their slot, each with a thread for
every environment, so that one that hangs holds up no other.

    RobotTaskEnv (here) ── a chunk of actions ──▶ thread of its child ── RobotTaskEnv (there)
                        ◀── states, reward …  ──

A child starts when the first environment needs it and ends with this process: it reads its standard
input, which closes then. One that died is replaced when the next environment is made; what was
played in it fails as an environment does, and is tried again.
"""

import atexit
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from rollart.errors import EnvError, UserError, describe_error

_PROGRAM = "rollart_robot.task_env"
"""The module that a child runs."""


class RemoteTaskEnv:
    """An environment whose simulator is in a child process.

    Example:
        >>> env = RemoteTaskEnv(child=0, options={"task": "reach", "slot": 4})
        >>> states, info = env.reset(7, {"split": "train"})

    """

    def __init__(self, *, child: int, options: Mapping[str, Any]) -> None:
        """Make the environment of these options in child process number `child`."""
        self._connection = _connect(child)
        self._call("make", dict(options))

    def reset(self, seed: int, task: Mapping[str, Any]) -> Any:
        """Begin an episode; see RobotTaskEnv."""
        return self._call("reset", seed, dict(task))

    def step(self, action: Any) -> Any:
        """Carry out a chunk; see RobotTaskEnv."""
        return self._call("step", action)

    def close(self) -> None:
        """Free the environment in the child."""
        self._connection.close()

    def _call(self, name: str, *arguments: Any) -> Any:
        try:
            self._connection.send((name, arguments))
            kind, answer = self._connection.recv()
        except (EOFError, OSError) as error:
            message = f"the process of the environment ended ({describe_error(error)})"
            raise EnvError(message) from error
        match kind:
            case "answer":
                return answer
            case "user":
                raise UserError(answer)
            case _:
                raise EnvError(answer)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Child:
    process: "subprocess.Popen[bytes]"
    folder: "tempfile.TemporaryDirectory[str]"

    @property
    def address(self) -> str:
        return str(Path(self.folder.name) / "environments")

    def end(self) -> None:
        """Let the child end, and wait until it has."""
        assert self.process.stdin is not None
        with suppress(OSError):
            self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=5.0)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.folder.cleanup()


_children = dict[int, _Child]()
_lock = threading.Lock()


def _connect(number: int) -> "Connection[Any, Any]":
    """Return a connection to a child, started if it does not run."""
    with _lock:
        child = _children.get(number)
        if child is None or child.process.poll() is not None:
            if child is not None:
                child.end()
            child = _children[number] = _start()
            atexit.unregister(end_children)
            atexit.register(end_children)
        return Client(child.address, family="AF_UNIX")


def end_children() -> None:
    """End all child processes; the next environment starts new ones."""
    with _lock:
        for child in _children.values():
            child.end()
        _children.clear()


def _start() -> _Child:
    # Closed by the child's end alone; its directory is this user's.
    folder = tempfile.TemporaryDirectory(prefix="rollart-envs-")
    address = str(Path(folder.name) / "environments")
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", _PROGRAM, address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    child = _Child(process=process, folder=folder)
    assert process.stdout is not None
    if not process.stdout.readline():
        child.end()
        raise EnvError(f"a process of environments ended at its start, code {process.returncode}")
    return child


def run_child(address: str, make: Callable[..., Any]) -> None:
    """Serve environments that `make` makes at an address, until standard input closes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent too, which decides
    threading.Thread(target=_serve, args=(address, make), daemon=True).start()
    sys.stdin.read()
    os._exit(0)


def _serve(address: str, make: Callable[..., Any]) -> None:
    with Listener(address, family="AF_UNIX", backlog=64) as listener:
        os.write(1, b"ready\n")
        os.dup2(2, 1)  # the parent reads no further line
        while True:
            connection = listener.accept()
            threading.Thread(target=_serve_one, args=(connection, make), daemon=True).start()


def _serve_one(connection: "Connection[Any, Any]", make: Callable[..., Any]) -> None:
    """Serve one environment until its connection closes."""
    env: Any = None
    with suppress(EOFError, OSError):
        while True:
            name, arguments = connection.recv()
            try:
                if name == "make":
                    env, answer = make(**arguments[0]), None
                else:
                    answer = getattr(env, name)(*arguments)
            except EnvError as error:
                connection.send(("env", str(error)))
            except UserError as error:
                connection.send(("user", str(error)))
            except Exception as error:  # whatever an environment raises is its own failure
                connection.send(("env", describe_error(error)))
            else:
                connection.send(("answer", answer))
    if env is not None:
        env.close()
