"""Rewards: the simulated workers that score trajectories, and how well they are used.

Dedicated workers are always there and take scores in order. Elastic instances come and go by the
rule the live invoker uses (`control/autoscaling.py`): a score that finds none free starts one, up
to a limit, and is taken by the one that is free first; those idle for a while end.
"""

from collections import deque
from collections.abc import Callable
from functools import partial

from rollart.config.simulation import ScoringOptions
from rollart.control.autoscaling import Orders, Scaler, Scaling
from rollart.sim.loop import Loop

Done = Callable[[], None]
_ENDLESS = 1 << 62


class RewardWorkers:
    """Runs reward functions in simulated time; no score waits for the result of another."""

    def __init__(self, options: ScoringOptions, *, loop: Loop) -> None:
        self.busy_s = 0.0
        self.cold_starts = 0
        self._options = options
        self._loop = loop
        self._busy = 0
        self._waiting: deque[tuple[float, Done]] = deque()
        rule = Scaling(
            max_instances=options.max_instances, idle_s=options.idle_s, queue_limit=_ENDLESS
        )
        self._scaler = Scaler(rule)
        self._calls = 0
        self._called: dict[int, tuple[float, Done]] = {}
        self._is_ticking = False

    @property
    def utilisation(self) -> float:
        """Share of the workers' existence in which they scored."""
        if self._options.kind == "elastic":
            return self._scaler.utilisation(now=self._loop.now)
        there_s = self._options.max_instances * self._loop.now
        return self.busy_s / there_s if there_s else 0.0

    def submit(self, seconds: float, done: Done) -> None:
        """Start a score that takes `seconds`; call `done` when it ends."""
        if self._options.kind == "elastic":
            call = self._calls
            self._calls += 1
            self._called[call] = (seconds, done)
            self._carry_out(self._scaler.called(call, now=self._loop.now))
        elif self._busy < self._options.max_instances:
            self._run(seconds, done)
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
        done()

    def _carry_out(self, orders: Orders) -> None:
        for instance in orders.start:
            self.cold_starts += 1
            self._loop.after(self._options.cold_start_s, partial(self._start, instance))
        for call, _ in orders.run:
            seconds, done = self._called.pop(call)
            self.busy_s += seconds
            self._loop.after(seconds, partial(self._answer, call, done))
        due = self._scaler.next_tick
        if due is not None and not self._is_ticking:
            self._is_ticking = True
            self._loop.after(max(0.0, due - self._loop.now), self._tick)

    def _start(self, instance: int) -> None:
        self._carry_out(self._scaler.started(instance, now=self._loop.now))

    def _answer(self, call: int, done: Done) -> None:
        self._carry_out(self._scaler.answered(call, now=self._loop.now))
        done()

    def _tick(self) -> None:
        self._is_ticking = False
        self._carry_out(self._scaler.tick(now=self._loop.now))
