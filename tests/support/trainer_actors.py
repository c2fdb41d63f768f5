"""A trainer that adds numbers, for tests of what becomes of trainers; light to import."""

import json
import os
import signal
import time
from pathlib import Path

from rollart.errors import StorageError
from rollart.types import StepReport, Version


class Adder:
    """Its weights are the sum of all batches; files in `desk` make it hang, die or refuse."""

    def __init__(self, desk: str) -> None:
        self._desk = Path(desk)
        self._version = 0
        self._sum = 0

    def step(self, batch):
        if (self._desk / "deadly").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        (self._desk / "stepping").write_text(str(os.getpid()))
        while (self._desk / "hang").exists():
            time.sleep(0.005)
        self._version += 1
        self._sum += int(batch["numbers"].sum())
        return StepReport(version=Version(self._version), metrics={"sum": float(self._sum)})

    def publish(self):
        with (self._desk / "published").open("a") as file:
            file.write(f"{self._version}:{self._sum} ")
        return Version(self._version)

    def save(self, directory):
        if (self._desk / "full").exists():
            raise StorageError(f"{directory}: the disk is full")
        Path(directory).mkdir(parents=True, exist_ok=True)
        state = json.dumps([self._version, self._sum])
        (Path(directory) / "state.json").write_text(state)

    def load(self, directory):
        if (self._desk / "unreadable").exists():
            raise OSError(f"{directory}: unreadable")
        self._version, self._sum = json.loads((Path(directory) / "state.json").read_text())
        return Version(self._version)

    def pid(self):
        return os.getpid()
