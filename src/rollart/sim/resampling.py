"""Recorded work: attempts and durations as a log tells them, or drawn from those by seed.

Attempts are known by task, member and try, so one that the simulated schedule launches earlier or
later than the live one did still takes what it took. One the log does not have is drawn from the
recorded ones of its domain; one that was cancelled is drawn from those that took longer than it had
run. Within an attempt the time after the first turn is spread evenly over the others.

Stretches: which part of a recorded run each part of a simulated one is like.

What ran at one time, and shared whatever slowed it, stays together.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from random import Random
from typing import TypeVar

from rollart.control.rules import one_domain
from rollart.control.task_order import TaskMix
from rollart.errors import UserError
from rollart.events import Launch
from rollart.seeds import derive_seed
from rollart.sim.measured import AttemptKey, AttemptRecord, Measured
from rollart.sim.workload import Script, ScriptTurn
from rollart.types import EngineId, EpisodeLimits, Version

_FIXED_SEGMENTS = 1
"""Stretches at the start that stay in place: filling a pipeline is like nothing that follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resampler:
    """Which recorded stretch each stretch of a simulated run is like."""

    seed: int | None
    """None: every stretch is like itself."""
    length: int
    count: int

    @property
    def can_draw(self) -> bool:
        """Whether there are two or more to choose from."""
        return self.count > _FIXED_SEGMENTS + 1

    @property
    def too_short_message(self) -> str:
        """What to say if there is none."""
        steps = (_FIXED_SEGMENTS + 2) * self.length
        return f"fewer than {steps} steps, too few to draw other runs like it"

    def scaled(self, times: int) -> "Resampler":
        """Return the same stretches of something there is more of."""
        return replace(self, length=self.length * times)

    def source(self, number: int) -> int:
        """Return what a number of the simulated run stands for in the recorded one."""
        if self.seed is None:
            return number
        segment, offset = divmod(number, self.length)
        if segment < _FIXED_SEGMENTS or not self.can_draw:
            return number
        drawn = _FIXED_SEGMENTS + derive_seed(self.seed, segment) % (self.count - _FIXED_SEGMENTS)
        return drawn * self.length + offset


T = TypeVar("T")
_NO_LIMIT = EpisodeLimits(max_turns=1 << 30, max_tokens=1 << 30)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Unfinished:
    """An attempt that was stopped before its end."""

    ran_s: float


class RecordedWorkload:
    """Scripts as a log tells them, or drawn from those."""

    def __init__(self, measured: Measured, *, tasks: TaskMix | None, resampler: Resampler) -> None:
        """Take the stream of tasks that the run had; None where all were of one domain."""
        self.tasks = tasks
        self._resampler = resampler
        self._known: dict[AttemptKey, Script | _Unfinished] = {}
        self._scripts: dict[str, list[Script]] = {}
        for attempt in measured.attempts.values():
            self._learn(attempt, measured)
        if not self._scripts:
            raise UserError("no attempt finished")

    def domain(self, task: int) -> str:
        """Return the domain of a task."""
        return one_domain(task) if self.tasks is None else self.tasks.domain(task)

    def script(self, launch: Launch) -> Script:
        """Return the course of an attempt."""
        domain = self.domain(launch.task)
        task = self._resampler.source(launch.task)
        known = self._known.get((task, launch.member, launch.attempt))
        if isinstance(known, Script) and known.domain == domain:
            return known
        everywhere = [each for scripts in self._scripts.values() for each in scripts]
        drawn_from = self._scripts.get(domain, everywhere)
        if isinstance(known, _Unfinished):
            longest = max(drawn_from, key=_seconds)
            drawn_from = [each for each in drawn_from if _seconds(each) > known.ran_s] or [longest]
        key = (launch.task, launch.member, launch.attempt)
        random = Random(derive_seed(self._resampler.seed or 0, *key))
        return replace(random.choice(drawn_from), domain=domain)

    def _learn(self, attempt: AttemptRecord, measured: Measured) -> None:
        domain = self.domain(attempt.key[0])
        script = _script(attempt, measured, domain=domain)
        self._known[attempt.key] = script
        if isinstance(script, Script):
            self._scripts.setdefault(domain, []).append(script)


def _script(attempt: AttemptRecord, measured: Measured, *, domain: str) -> Script | _Unfinished:
    """Return an attempt's course, as far as it is known."""
    ended_s = measured.last_s if attempt.ended_s is None else attempt.ended_s
    if attempt.info is None and not attempt.has_failed:
        return _Unfinished(ran_s=measured.own_s(attempt.launched_s, ended_s))
    first_s = measured.own_s(attempt.launched_s, attempt.born_s or ended_s)
    if attempt.info is None:
        return Script(domain=domain, reset_s=first_s, turns=(), limits=_NO_LIMIT, fails=True)
    rest_s = 0.0 if attempt.born_s is None else measured.own_s(attempt.born_s, ended_s)
    return Script(
        domain=domain,
        reset_s=0.0,
        turns=_turns(first_s, rest_s, count=attempt.info.turns, tokens=attempt.info.cost),
        limits=_NO_LIMIT,
        score_s=attempt.score_s,
        reward=attempt.reward,
    )


def _turns(first_s: float, rest_s: float, *, count: int, tokens: int) -> tuple[ScriptTurn, ...]:
    samples = max(1, tokens // count)
    later_s = 0.0 if count == 1 else rest_s / (count - 1)
    later = ScriptTurn(reads=1, samples=samples, step_s=0.0, generate_s=later_s)
    step_s = rest_s if count == 1 else 0.0
    first = ScriptTurn(reads=1, samples=samples, step_s=step_s, generate_s=first_s)
    return (first, *[later] * (count - 1))


def _seconds(script: Script) -> float:
    return script.reset_s + sum(turn.step_s + turn.generate_s for turn in script.turns)


class RecordedDurations:
    """Durations as a log tells them; what it does not have is drawn from what it has."""

    def __init__(self, measured: Measured, *, resampler: Resampler, batch: float = 1.0) -> None:
        """Take the size of a batch over that of the recorded ones, by which steps take longer."""
        self._measured = measured
        self._resampler = resampler
        self._batch = batch
        self._lend_s = mean(measured.lend_s)

    def train_s(self, tokens: int, *, version: Version) -> float:
        """Return the time of the optimizer step from a version."""
        del tokens
        return self._batch * self._take(self._measured.train_s, self._source(version))

    def publish_s(self, version: Version) -> float:
        """Return the time until a new version may be loaded."""
        return self._take(self._measured.publish_s, self._source(version))

    def update_s(self, version: Version, *, engine: EngineId) -> float:
        """Return how long an engine stands still to load it."""
        return self._take(self._measured.update_s, (self._source(version), engine))

    def lend_s(self) -> float:
        """Return the mean time of making training hardware serve or train again."""
        return self._lend_s

    def recall_s(self) -> float:
        """Return the same: both are measured together."""
        return self._lend_s

    def _source(self, version: Version) -> Version:
        return Version(self._resampler.source(version))

    def _take(self, known: Mapping[T, float], key: T) -> float:
        return known[key] if key in known else mean(known.values())


def mean(values: Iterable[float]) -> float:
    """Return the mean, or 0 of nothing."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0
