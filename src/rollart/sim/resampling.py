"""Recorded work: attempts and durations from a log, or resampled from it by a seed.

Attempts are identified by task, member and try, so an attempt takes as long as in the live run even
if the simulated schedule launches it earlier or later. An attempt that the log does not have is
drawn from the recorded ones of its domain; one that was cancelled, from those that took longer than
it had run. Within an attempt the time after the first turn is spread evenly over the other turns.

A resampled run is made of whole segments of the recorded one, so that attempts that ran at the same
time, and were slowed by the same causes, stay together.
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
"""Segments at the start that stay in place: filling the pipeline is unlike what follows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resampler:
    """Which recorded segment each segment of a simulated run is taken from.

    Example:
        Resampler(seed=None, length=4, count=5).source(9) == 9  # no seed: the run as it was
        Resampler(seed=1, length=4, count=5).source(2) == 2  # the first segment stays in place

    """

    seed: int | None
    """None: every segment stands for itself."""
    length: int
    """Steps, or tasks, of one segment."""
    count: int
    """Segments in the recorded run."""

    @property
    def can_draw(self) -> bool:
        """Whether there are at least two segments to draw from."""
        return self.count > _FIXED_SEGMENTS + 1

    @property
    def too_short_message(self) -> str:
        """The message for a run that is too short to resample."""
        steps = (_FIXED_SEGMENTS + 2) * self.length
        return f"fewer than {steps} steps, too few to draw other runs like it"

    def scaled(self, times: int) -> "Resampler":
        """Return the same segments counted in a unit of which there are `times` as many."""
        return replace(self, length=self.length * times)

    def source(self, number: int) -> int:
        """Return the recorded step or task that a simulated one is taken from."""
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
    """An attempt that was stopped before it ended."""

    ran_s: float


class RecordedWorkload:
    """Scripts of recorded attempts, or drawn from those."""

    def __init__(self, measured: Measured, *, tasks: TaskMix | None, resampler: Resampler) -> None:
        """Read the attempts; `tasks` is the run's task stream, None if it had one domain."""
        self.tasks = tasks
        self._resampler = resampler
        self._known: dict[AttemptKey, Script | _Unfinished] = {}
        self._scripts: dict[str, list[Script]] = {}
        for attempt in measured.attempts.values():
            self._learn(attempt, measured)
        if not self._scripts:
            raise UserError("no attempt of the run finished, so there is nothing to simulate")

    def domain(self, task: int) -> str:
        """Return the domain of a task."""
        return one_domain(task) if self.tasks is None else self.tasks.domain(task)

    def script(self, launch: Launch) -> Script:
        """Return the script of an attempt."""
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
    """Return an attempt's script, or how long it ran if it was stopped."""
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
    """Durations from a log; where it has none, the mean of those it has."""

    def __init__(self, measured: Measured, *, resampler: Resampler, batch: float = 1.0) -> None:
        """`batch` is the batch size relative to the recorded one; training time grows with it."""
        self._measured = measured
        self._resampler = resampler
        self._batch = batch
        self._lend_s = mean(measured.lend_s)

    def train_s(self, tokens: int, *, version: Version) -> float:
        """Return the time of the optimizer step from a version."""
        del tokens
        return self._batch * self._take(self._measured.train_s, self._source(version))

    def publish_s(self, version: Version) -> float:
        """Return the time until engines may load a new version."""
        return self._take(self._measured.publish_s, self._source(version))

    def update_s(self, version: Version, *, engine: EngineId) -> float:
        """Return how long an engine pauses to load it."""
        return self._take(self._measured.update_s, (self._source(version), engine))

    def lend_s(self) -> float:
        """Return the mean time to lend training hardware or to recall it."""
        return self._lend_s

    def recall_s(self) -> float:
        """Return the same mean: lends and recalls are measured together."""
        return self._lend_s

    def _source(self, version: Version) -> Version:
        return Version(self._resampler.source(version))

    def _take(self, known: Mapping[T, float], key: T) -> float:
        return known[key] if key in known else mean(known.values())


def mean(values: Iterable[float]) -> float:
    """Return the mean; 0 if there are no values."""
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0
