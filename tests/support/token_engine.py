"""A reference engine that goes token by token, to hold the fluid one against."""

from dataclasses import dataclass, field

from rollart.sim.costs import EngineCosts


@dataclass
class Turn:
    """One request and how far it is."""

    name: int
    arrives_s: float
    context: int
    response: int
    read: int = 0
    sampled: int = 0
    ended_s: float = 0.0

    @property
    def tokens(self) -> int:
        return self.context + self.response


@dataclass
class TokenEngine:
    """Every step reads one chunk of one request and samples one token of each that is read."""

    costs: EngineCosts
    turns: list[Turn]
    now: float = 0.0
    waiting: list[Turn] = field(default_factory=list)
    unread: list[Turn] = field(default_factory=list)
    running: list[Turn] = field(default_factory=list)

    def run(self) -> dict[int, float]:
        """Complete everything; return when each request was done."""
        coming = sorted(self.turns, key=lambda turn: turn.arrives_s)
        while coming or self.waiting or self.unread or self.running:
            if not (self.waiting or self.unread or self.running):
                self.now = max(self.now, coming[0].arrives_s)
            while coming and coming[0].arrives_s <= self.now:
                self.waiting.append(coming.pop(0))
            self._admit()
            self._step()
        return {turn.name: turn.ended_s for turn in self.turns}

    def _admit(self) -> None:
        held = sum(turn.tokens for turn in (*self.unread, *self.running))
        while self.waiting and (
            held + self.waiting[0].tokens <= self.costs.capacity_tokens or not held
        ):
            held += self.waiting[0].tokens
            self.unread.append(self.waiting.pop(0))

    def _step(self) -> None:
        constants = self.costs.constants
        sampling = list(self.running)
        if self.unread:
            turn = self.unread[0]
            chunk = min(constants.chunk_tokens, turn.context - turn.read)
            self.now += self.costs.prefill_s(chunk, cached=turn.read) + constants.step_overhead_s
            turn.read += chunk
            if turn.read == turn.context:
                self.running.append(self.unread.pop(0))
        if sampling:
            cached = sum(turn.context + turn.sampled for turn in sampling)
            self.now += self.costs.decode_s(len(sampling), cached=cached)
            for turn in sampling:
                turn.sampled += 1
                if turn.sampled == turn.response:
                    turn.ended_s = self.now
                    self.running.remove(turn)
