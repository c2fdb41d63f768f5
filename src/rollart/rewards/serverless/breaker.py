"""A circuit breaker as pure state: closed, open, half-open.

Closed, every call passes. After so many failures in a row it opens: nothing passes until it has
rested. Then it is half open: one call passes as a probe; its success closes the circuit, its
failure opens it again. One that stays open is given up: at once after `probes` of them if the
function never answered, which is how a broken one looks, else after `patience_s`, so that an outage
is outlived. No clock: `now` is given.
"""

from typing import Literal

State = Literal["closed", "open", "half-open"]


class Breaker:
    """Keeps calls away from a function that fails again and again."""

    def __init__(self, *, failures: int, rest_s: float, probes: int, patience_s: float) -> None:
        self._most = failures
        self._rest_s = rest_s
        self._most_probes = probes
        self._patience_s = patience_s
        self._has_answered = False
        self._probes = 0
        self._since_s = 0.0
        self._opened_s: float | None = None
        self.failures = 0
        self._is_probing = False
        self.opens = 0
        self.reason = ""

    @property
    def state(self) -> State:
        """What the circuit is; an open one turns half open with its first probe."""
        if self._opened_s is None:
            return "closed"
        return "half-open" if self._is_probing else "open"

    def may_pass(self, *, now: float) -> bool:
        """Say whether a call would be let through now."""
        if self._opened_s is None:
            return True
        return not self._is_probing and now >= self._opened_s + self._rest_s

    def try_pass(self, *, now: float) -> bool:
        """Say whether a call may be delivered now; if so, its end must be told."""
        is_passed = self.may_pass(now=now)
        self._is_probing |= is_passed and self._opened_s is not None
        return is_passed

    def rest_s(self, *, now: float) -> float:
        """Return how long to wait before `try_pass` is worth another try."""
        if self._opened_s is None:
            return 0.0
        rest_s = self._opened_s + self._rest_s - now
        return rest_s if rest_s > 0 and not self._is_probing else self._rest_s

    def is_given_up(self, *, now: float) -> bool:
        """Say whether calls should no longer wait for the circuit to close."""
        if self._opened_s is None:
            return False
        is_broken = not self._has_answered and self._probes >= self._most_probes
        return is_broken or now >= self._since_s + self._patience_s

    def succeeded(self) -> None:
        """Note that the function answered."""
        self._has_answered = True
        self.failures = self._probes = 0
        self._opened_s = None
        self._is_probing = False

    def failed(self, reason: str, *, now: float) -> None:
        """Note that a delivery failed."""
        self.failures += 1
        self.reason = reason
        self._probes += self._is_probing
        if self._is_probing or 0 < self._most <= self.failures:
            if self._opened_s is None:
                self.opens += 1
                self._since_s = now
            self._opened_s = now
            self._is_probing = False

    def abandoned(self) -> None:
        """Note that a delivery was given up with nothing learned."""
        self._is_probing = False
