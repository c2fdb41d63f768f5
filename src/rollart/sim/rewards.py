"""Rewards: where scoring runs in the simulator, and how well those places are used.

Dedicated workers are always there and take scores in order; elastic instances are started when
none is free, up to a limit, and go when they have been idle for a while.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from rollart.errors import ConfigError
from rollart.sim.loop import Loop, Timer

Done = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardOptions:
    """Where scoring runs."""

    kind: Literal["dedicated", "elastic"] = "elastic"
    """Workers that are always there, or instances that come and go."""
    most: int = 1000
    """Workers, or the most instances there may be."""
    cold_start_s: float = 2.0
    """Time an elastic instance needs before its first score."""
    keep_s: float = 30.0
    """Time an elastic instance stays when idle."""

    def __post_init__(self) -> None:
        if self.most < 1:
            raise ConfigError("rewards.most", self.most, "must be at least 1")
        for name in ("cold_start_s", "keep_s"):
            if getattr(self, name) < 0:
                raise ConfigError(f"rewards.{name}", getattr(self, name), "must be at least 0")


class RewardPlace:
    """Runs scores; nothing waits for another's result."""

    def __init__(self, options: RewardOptions, *, loop: Loop) -> None:
        self._options = options
        self._loop = loop
        self._waiting: deque[tuple[float, Done]] = deque()
        self._idle: deque[Timer] = deque()
        self._busy = 0
        self.busy_s = 0.0
        self.cold_starts = 0
        self._provisioned_s = 0.0
        self._provisioned = options.most if options.kind == "dedicated" else 0
        self._since = 0.0

    @property
    def utilisation(self) -> float:
        """Share of the time workers or instances existed in which they scored."""
        self._count(0)
        return self.busy_s / self._provisioned_s if self._provisioned_s else 0.0

    def submit(self, seconds: float, done: Done) -> None:
        """Score something that takes so long."""
        if self._options.kind == "dedicated":
            if self._busy < self._options.most:
                self._run(seconds, done)
            else:
                self._waiting.append((seconds, done))
        elif self._idle:
            self._idle.pop().cancel()
            self._run(seconds, done)
        elif self._provisioned < self._options.most:
            self._count(1)
            self.cold_starts += 1
            self._loop.after(self._options.cold_start_s, partial(self._run, seconds, done))
        else:
            self._waiting.append((seconds, done))

    def _run(self, seconds: float, done: Done) -> None:
        self._busy += 1
        self.busy_s += seconds
        self._loop.after(seconds, partial(self._finish, done))

    def _finish(self, done: Done) -> None:
        self._busy -= 1
        if self._waiting:
            self._run(*self._waiting.popleft())
        elif self._options.kind == "elastic":
            self._idle.append(self._loop.after(self._options.keep_s, self._retire))
        done()

    def _retire(self) -> None:
        self._idle.popleft()
        self._count(-1)

    def _count(self, change: int) -> None:
        now = self._loop.now
        self._provisioned_s += self._provisioned * (now - self._since)
        self._since = now
        self._provisioned += change
