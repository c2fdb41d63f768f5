"""A slow link on this machine: two network namespaces, a veth pair, and tc on both ends."""

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

from rollart.errors import UserError

_QUEUE_MS = 50
"""How long a packet may wait for its turn before it is dropped."""
_NAME = re.compile(r"rollart-weights-(\d+)-[te]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Two ends that reach each other through the shaped link only."""

    trainer: str
    """Namespace of the trainer's side."""
    engines: str
    trainer_host: str = "10.231.7.1"
    engines_host: str = "10.231.7.2"

    def command(self, side: str, *argv: str) -> list[str]:
        """Return the command that runs `argv` on a side."""
        namespace = self.trainer if side == "trainer" else self.engines
        return ["ip", "netns", "exec", namespace, *argv]


@contextlib.contextmanager
def shaped_link(*, rate_mbit: int) -> Generator[Link]:
    """Make the link and take it down again, whatever happens."""
    if os.geteuid() or not shutil.which("ip") or not shutil.which("tc"):
        raise UserError(
            "the weights benchmark makes network namespaces: run it as root, with `ip` and `tc` "
            "(package iproute2) installed"
        )
    _remove_leftovers()
    pid = os.getpid()
    link = Link(trainer=f"rollart-weights-{pid}-t", engines=f"rollart-weights-{pid}-e")
    try:
        for namespace in (link.trainer, link.engines):
            _run("ip", "netns", "add", namespace)
        ends = (
            (link.trainer, "trainer", link.trainer_host),
            (link.engines, "engines", link.engines_host),
        )
        _run(
            *("ip", "link", "add", "rl-trainer", "netns", link.trainer, "type", "veth"),
            *("peer", "name", "rl-engines", "netns", link.engines),
        )
        for namespace, side, host in ends:
            inside = ("ip", "-n", namespace)
            _run(*inside, "addr", "add", f"{host}/30", "dev", f"rl-{side}")
            _run(*inside, "link", "set", f"rl-{side}", "up")
            _run(*inside, "link", "set", "lo", "up")
            _run(
                *("tc", "-n", namespace, "qdisc", "add", "dev", f"rl-{side}", "root", "tbf"),
                *("rate", f"{rate_mbit}mbit", "burst", "256kb", "latency", f"{_QUEUE_MS}ms"),
            )
        yield link
    finally:
        for namespace in (link.trainer, link.engines):
            subprocess.run(
                ["ip", "netns", "del", namespace], stderr=subprocess.DEVNULL, check=False
            )


def _remove_leftovers() -> None:
    """Remove namespaces of benchmarks that were killed."""
    for path in Path("/run/netns").glob("rollart-weights-*"):
        match = _NAME.fullmatch(path.name)
        if match is not None and not Path(f"/proc/{match[1]}").exists():
            subprocess.run(["ip", "netns", "del", path.name], check=False)


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"`{' '.join(argv)}` failed: {done.stderr.strip()}")
