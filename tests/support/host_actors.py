"""Actors for the tests of the host; light to import, as every worker does."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

from rollart.errors import ConfigError, InvariantError, RollartError, StorageError, UserError
from rollart.types import StepReport, Version


class Echo:
    def __init__(self, greeting: str = "hello", closed_file: str | None = None) -> None:
        self.greeting = greeting
        self.closed_file = closed_file
        self.calls: list[object] = []

    def echo(self, *values):
        return values

    def greet(self, name):
        return f"{self.greeting}, {name}"

    def note(self, value):
        self.calls.append(value)
        return len(self.calls)

    def noted(self):
        return self.calls

    def where(self):
        return (os.getpid(), threading.get_ident())

    def report(self):
        return StepReport(version=Version(3), metrics={"loss": 0.5})

    def double(self, array):
        array *= 2
        return {"array": array}

    def environment(self, name):
        return os.environ.get(name)

    def unsendable(self):
        return {1, 2}

    def sleep(self, seconds):
        time.sleep(seconds)

    def hold(self, directory):
        """Say in a file that the call runs, and wait for a file that ends it."""
        Path(directory, "held").touch()
        while not Path(directory, "open").exists():
            time.sleep(0.002)

    def say(self, text):
        sys.stdout.write(text + "\n")

    def die(self, text, code):
        sys.stderr.write(text + "\n")
        os._exit(code)

    def interrupt(self):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        return "still here"

    def fail(self, kind):
        match kind:
            case "config":
                raise ConfigError("trainer.lr", [1, "x"], "must be positive")
            case "config_object":
                raise ConfigError("trainer.lr", {1, 2}, "must be a number")
            case "user":
                raise UserError("you can fix this")
            case "storage":
                raise StorageError("disk is full")
            case "invariant":
                raise InvariantError("broken")
            case "subclass":
                raise PickyError("picky")
            case "root":
                raise RollartError("root")
            case "exit":
                sys.exit("leaving")
            case _:
                raise KeyError(kind)

    def close(self):
        if self.closed_file is not None:
            Path(self.closed_file).write_text("closed")


class PickyError(UserError):
    pass


class Unmakable:
    def __init__(self, size: int) -> None:
        raise ConfigError("unmakable.size", size, "choose another")


class BadCloser:
    def close(self):
        raise UserError("cannot close")


class Unfinished(Echo):
    """An actor that is never made."""

    def __init__(self, directory: str) -> None:
        super().__init__()
        self.hold(directory)
