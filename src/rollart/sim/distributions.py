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
from typing import Annotated

from rollart.config.simulation import LatencyKind
from rollart.constraints import AtLeast, Between, check_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """A distribution of durations.

    Example:
        Latency(kind="lognormal", mean_s=1.5, spread=0.8).draw(Random(0))  # seconds, 1.5 on average

    """

    kind: LatencyKind = "constant"
    """The distribution's shape."""
    mean_s: Annotated[float, AtLeast(0)] = 0.0
    """Its mean, without the tail."""
    spread: Annotated[float, AtLeast(0)] = 0.0
    """How wide it is; see the table above."""
    tail_share: Annotated[float, Between(0, 1)] = 0.0
    """Share of draws that take `tail_factor` times as long."""
    tail_factor: Annotated[float, AtLeast(1)] = 1.0
    """How many times longer those draws are."""

    def __post_init__(self) -> None:
        check_fields(self, "latency")

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
