"""Circuit breakers: stop deliveries to a reward function that fails again and again.

A `Breaker` is pure state (`now` is passed in). Closed, every call passes. After `failures` failures
in a row it opens, and no call passes for `rest_s`. Then one call passes as a probe (half-open): its
success closes the circuit, its failure opens it again. Calls stop waiting for an open circuit after
`probes` failed probes if the function never answered, because it is probably broken; otherwise
after `patience_s`, so that a run survives an outage.

`Circuits` keeps one breaker per function. A breaker watches the process that runs a function, so a
function that raised, or refused a call, counts as answered. The user is warned of a function's
first failure and whenever its circuit opens, is given up or closes.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from rollart.clock import Clock
from rollart.errors import ScoreError
from rollart.rewards.invoke.options import Reliability

State = Literal["closed", "open", "half-open"]


class Breaker:
    """Stops calls to a function that fails again and again."""

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
        """The circuit's state; an open one becomes half-open with its first probe."""
        if self._opened_s is None:
            return "closed"
        return "half-open" if self._is_probing else "open"

    def may_pass(self, *, now: float) -> bool:
        """Return whether a call would pass now."""
        if self._opened_s is None:
            return True
        return not self._is_probing and now >= self._opened_s + self._rest_s

    def try_pass(self, *, now: float) -> bool:
        """Return whether a call may be delivered now.

        If so, report its end with `succeeded`, `failed` or `abandoned`.
        """
        is_passed = self.may_pass(now=now)
        self._is_probing |= is_passed and self._opened_s is not None
        return is_passed

    def rest_s(self, *, now: float) -> float:
        """Return how long to wait before the next `try_pass`."""
        if self._opened_s is None:
            return 0.0
        rest_s = self._opened_s + self._rest_s - now
        return rest_s if rest_s > 0 and not self._is_probing else self._rest_s

    def is_given_up(self, *, now: float) -> bool:
        """Return whether calls should stop waiting for the circuit to close."""
        if self._opened_s is None:
            return False
        is_broken = not self._has_answered and self._probes >= self._most_probes
        return is_broken or now >= self._since_s + self._patience_s

    def succeeded(self) -> None:
        """Record that the function answered."""
        self._has_answered = True
        self.failures = self._probes = 0
        self._opened_s = None
        self._is_probing = False

    def failed(self, reason: str, *, now: float) -> None:
        """Record that a delivery failed."""
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
        """Record that a delivery was cancelled, which says nothing about the function."""
        self._is_probing = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitOpen:
    """Why a call may not be delivered now.

    Example:
        >>> CircuitOpen(reason="open since: timed out", rest_s=4.2, is_given_up=False)

    """

    reason: str
    rest_s: float
    """Seconds to wait before the next try."""
    is_given_up: bool
    """Whether the call should fail instead of waiting."""


class Circuits:
    """One circuit for each function."""

    def __init__(
        self, options: Reliability, *, clock: Clock, warn: Callable[[str], None] | None = None
    ) -> None:
        self._options = options
        self._clock = clock
        self._warn = warn or _say_nothing
        self._breakers: dict[str, Breaker] = {}
        self._failed: set[str] = set()
        self._given_up: set[str] = set()
        """Functions given up, each with one warning."""

    def try_pass(self, function: str) -> bool:
        """Return whether a call may be delivered now; if so, its end must be reported."""
        return self._of(function).try_pass(now=self._clock.now())

    def stop(self, function: str) -> CircuitOpen | None:
        """Return why a call may not be delivered now, or None if it may."""
        now, breaker = self._clock.now(), self._of(function)
        if breaker.may_pass(now=now):
            return None
        is_given_up = breaker.is_given_up(now=now)
        if is_given_up and function not in self._given_up:
            self._given_up.add(function)
            self._report(function, "still fails: its calls fail until it answers", breaker.reason)
        in_a_row = f"{breaker.failures} deliveries in a row failed"
        return CircuitOpen(
            reason=f"its circuit is open since: {breaker.reason} ({in_a_row})",
            rest_s=breaker.rest_s(now=now),
            is_given_up=is_given_up,
        )

    def succeeded(self, function: str) -> None:
        """Record that a function answered."""
        breaker = self._of(function)
        if breaker.state != "closed":
            self._warn(f"reward function {function} answers again")
        self._given_up.discard(function)
        breaker.succeeded()

    def failed(self, function: str, error: ScoreError) -> None:
        """Record that a delivery gave no rewards."""
        if function not in self._failed:
            self._failed.add(function)
            self._report(function, "failed (further failures are only counted)", str(error))
        if error.is_final or error.is_own:
            self.succeeded(function)
            return
        breaker = self._of(function)
        was_open = breaker.state != "closed"
        breaker.failed(str(error), now=self._clock.now())
        if breaker.state != "closed" and not was_open:
            how = f"{breaker.failures} times in a row: its calls wait"
            probes = f"it is tried every {self._options.breaker_rest_s:g} s"
            most = f"for at most {self._options.deadline_s:g} s"
            self._report(function, f"failed {how}, {probes}, {most}", str(error))

    def abandoned(self, function: str) -> None:
        """Record that a delivery was cancelled, which says nothing about the function."""
        self._of(function).abandoned()

    def stats(self) -> Mapping[str, float]:
        """Return how often circuits opened and how many are open."""
        breakers = self._breakers.values()
        return {
            "breaker_opens": sum(each.opens for each in breakers),
            "breakers_open": sum(each.state != "closed" for each in breakers),
        }

    def _of(self, function: str) -> Breaker:
        if function not in self._breakers:
            options = self._options
            self._breakers[function] = Breaker(
                failures=options.breaker_failures,
                rest_s=options.breaker_rest_s,
                probes=options.breaker_probes,
                patience_s=options.deadline_s,
            )
        return self._breakers[function]

    def _report(self, function: str, what: str, reason: str) -> None:
        # Most reasons start with the function's name, which the warning already has.
        short = reason.removeprefix(function).removeprefix(":").strip()
        self._warn(f"reward function {function} {what}; reason: {short}")


def _say_nothing(_text: str) -> None:
    """Drop a warning."""
