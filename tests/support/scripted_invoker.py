"""An invoker that does what a script says, for what stands around invokers."""

import asyncio
from collections.abc import Callable, Mapping

from rollart.errors import ScoreError
from rollart.types import Reward, ScoreCall

Deed = float | Exception | None
"""A score at once, a failure, or an answer that never comes."""


class ScriptedInvoker:
    """Answers the n-th delivery with the n-th deed; the last one goes on for ever."""

    def __init__(self, *deeds: Deed, delay_s: float = 0.0) -> None:
        self.deeds = deeds
        self.delay_s = delay_s
        self.calls: list[ScoreCall] = []
        self.cancelled = 0
        self.is_closed = False
        self.on_invoke: Callable[[], None] = lambda: None

    async def invoke(self, call: ScoreCall) -> tuple[Reward, ...]:
        """Do the next deed."""
        deed = self.deeds[min(len(self.calls), len(self.deeds) - 1)]
        self.calls.append(call)
        self.on_invoke()
        try:
            await asyncio.sleep(self.delay_s if deed is not None else 1000)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if isinstance(deed, Exception):
            raise deed
        assert deed is not None
        return (Reward(value=deed),)

    def stats(self) -> Mapping[str, float]:
        """Return one number of its own."""
        return {"cold_starts": 3}

    async def close(self) -> None:
        """Note that it was closed."""
        self.is_closed = True


BROKEN = ScoreError("the line is broken")
WRONG = ScoreError("the function is wrong", is_final=True)
