"""Stretches: which part of a recorded run each part of a simulated one is like.

What ran at one time, and shared whatever slowed it, stays together.
"""

from dataclasses import dataclass, replace

from rollart.seeds import derive_seed

_FILLING = 1
"""Stretches at the start that stay in place: filling a pipeline is like nothing that follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretches:
    """Which recorded stretch each stretch of a simulated run is like."""

    seed: int | None
    """None: every stretch is like itself."""
    length: int
    count: int

    @property
    def are_drawn(self) -> bool:
        """Whether there are two or more to choose from."""
        return self.count > _FILLING + 1

    @property
    def too_few(self) -> str:
        """What to say if there is none."""
        steps = (_FILLING + 2) * self.length
        return f"fewer than {steps} steps, too few to draw other runs like it"

    def longer(self, times: int) -> "Stretches":
        """Return the same stretches of something there is more of."""
        return replace(self, length=self.length * times)

    def source(self, number: int) -> int:
        """Return what a number of the simulated run stands for in the recorded one."""
        if self.seed is None:
            return number
        stretch, offset = divmod(number, self.length)
        if stretch < _FILLING or not self.are_drawn:
            return number
        drawn = _FILLING + derive_seed(self.seed, stretch) % (self.count - _FILLING)
        return drawn * self.length + offset
