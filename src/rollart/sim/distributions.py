"""Latency: how long something takes, drawn from a named distribution.

| kind      | mean_s                | spread                                                  |
|-----------|-----------------------|---------------------------------------------------------|
| constant  | the value             | unused                                                  |
| normal    | before clamping at 0  | standard deviation over the mean                        |
| lognormal | of the distribution   | standard deviation of the logarithm                     |

On top of any of them, a `tail_share` of draws is `tail_factor` times as long.
"""

from dataclasses import dataclass
from math import exp
from random import Random
from typing import Literal, get_args

from rollart.errors import ConfigError

Kind = Literal["constant", "normal", "lognormal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """A distribution of durations."""

    kind: Kind = "constant"
    """The distribution's shape."""
    mean_s: float = 0.0
    """Its mean, before the tail is added."""
    spread: float = 0.0
    """How wide it is; see the table above."""
    tail_share: float = 0.0
    """The share of draws that is much longer."""
    tail_factor: float = 1.0
    """How many times longer those are."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ConfigError("latency.kind", self.kind, f"must be one of {get_args(Kind)}")
        for name in ("mean_s", "spread"):
            if getattr(self, name) < 0:
                raise ConfigError(f"latency.{name}", getattr(self, name), "must be at least 0")
        if not 0 <= self.tail_share <= 1:
            raise ConfigError("latency.tail_share", self.tail_share, "must be from 0 to 1")
        if self.tail_factor < 1:
            raise ConfigError("latency.tail_factor", self.tail_factor, "must be at least 1")

    def draw(self, random: Random) -> float:
        """Return one duration in seconds."""
        if self.mean_s == 0:
            return 0.0
        match self.kind:
            case "constant":
                seconds = self.mean_s
            case "normal":
                seconds = max(0.0, random.gauss(self.mean_s, self.mean_s * self.spread))
            case "lognormal":
                seconds = self.mean_s * unit_lognormal(random, self.spread)
        if self.tail_share and random.random() < self.tail_share:
            seconds *= self.tail_factor
        return seconds


def unit_lognormal(random: Random, spread: float) -> float:
    """Return a lognormal draw of mean 1."""
    return exp(random.gauss(0.0, spread) - spread * spread / 2) if spread else 1.0
