"""SimAttempt: one attempt on its way through environment and engine.

    reset ─► (arrive ─► engine ─► arrive ─► environment)* ─► finished

The turn loop is `control.turns.Turns`, the one the live episode counts by; what each turn brings is
the script's. An attempt does one thing at a time, so it has one thing to stop when cancelled.

Job: one turn to be completed, as engines of the simulator take it in.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rollart.control.episode import Turns
from rollart.errors import InvariantError
from rollart.events import (
    Event,
    Launch,
    TrajectoryBorn,
    TrajectoryCancelled,
    TrajectoryFailed,
    TrajectoryFinished,
)
from rollart.sim.loop import Loop, Timer
from rollart.sim.workload import Script, ScriptTurn
from rollart.types import EngineId, Failure, StopReason, TrajectoryId, TrajectoryInfo, Version


@dataclass(slots=True, kw_only=True, eq=False)
class Job:
    """One turn to be completed."""

    session: TrajectoryId
    context: float
    """Tokens to be read, the whole history."""
    response: float
    """Tokens to be sampled."""
    on_done: Callable[["Job"], None]
    """What its engine does when it is completed."""
    then: Callable[["Job"], None] | None = None
    """What a fleet does after that."""
    born: Version | None = None
    """The version that sampled the first token."""
    sampled: float = 0.0
    """Tokens sampled before the engine last took it up."""
    began: float = 0.0
    """The engine's clock when it began to sample."""
    entry: int = 0
    """Which of the engine's listed ends is its own."""
    seconds: float = 0.0
    """How long it takes on an engine that is timed and not modelled."""
    received: float = 0.0
    """Tokens of the context whose keys and values come with it."""
    cached: float = 0.0
    """Tokens of the context that need not be read again."""
    state: str = "new"
    """Where in its engine it is."""
    domain: str = ""
    """The domain of its task."""
    home: EngineId | None = None
    """The engine a fleet has given it to, if it has."""
    sampled_before: float = 0.0
    """Tokens sampled before it came there."""

    @property
    def tokens(self) -> float:
        """Tokens it will have when done."""
        return self.context + self.response


_NO_TURN = ScriptTurn(reads=0, samples=0, step_s=0.0)


class Generation(Protocol):
    """Where an attempt has its turns completed."""

    def generate(self, job: Job, *, domain: str) -> None:
        """Complete a job on the engine that fits it."""
        ...

    def abort(self, job: Job) -> float:
        """Stop a job; return how many tokens it has sampled."""
        ...

    def forget(self, session: TrajectoryId) -> None:
        """Drop what is cached for a session that ended."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptContext:
    """What every attempt shares."""

    loop: Loop
    generation: Generation
    arrive: Callable[[TrajectoryId, Callable[[], None]], None]
    """Go on when all may take their turn."""
    post: Callable[[Event], None]
    is_fresh: Callable[[Version], bool]
    call_s: float
    """Time of a call to an environment beside its own work."""


class SimAttempt:
    """One attempt at one task."""

    __slots__ = (
        "_job",
        "_shared",
        "_timer",
        "_turn",
        "born",
        "id",
        "sampled",
        "script",
        "turns",
    )

    def __init__(self, launch: Launch, *, script: Script, shared: AttemptContext) -> None:
        self.id = launch.id
        self.script = script
        self.turns = Turns(script.limits)
        self.sampled = 0
        self.born: Version | None = None
        self._shared = shared
        self._timer: Timer | None = None
        self._job: Job | None = None
        self._turn = _NO_TURN
        """The turn being made."""

    def start(self) -> None:
        """Reset the environment."""
        shared = self._shared
        self._timer = shared.loop.after(shared.call_s + self.script.reset_s, self._opened)

    def cancel(self) -> None:
        """Stop whatever it is doing and say so."""
        if self._timer is not None:
            self._timer.cancel()
        tokens = self.sampled
        if self._job is not None:
            tokens += int(self._shared.generation.abort(self._job))
        self._shared.generation.forget(self.id)
        self._shared.post(TrajectoryCancelled(id=self.id, cost=tokens))

    def _opened(self) -> None:
        self._timer = None
        if self.script.fails:
            self._shared.generation.forget(self.id)
            failure = Failure(kind="env_error", message="the simulated environment failed")
            self._shared.post(TrajectoryFailed(id=self.id, failure=failure, cost=0))
            return
        self._turn = self.script.turns[0]
        if self.turns.show(self._turn.reads):
            limit = self.script.limits.max_tokens
            raise InvariantError(f"a first prompt leaves no room within {limit} tokens")
        self._shared.arrive(self.id, self._generate)

    def _generate(self) -> None:
        turns = self.turns
        turn = self._turn
        job = self._job = Job(
            session=self.id,
            context=turns.tokens,
            response=min(turn.samples, turns.room),
            seconds=turn.generate_s,
            on_done=self._completed,
        )
        self._shared.generation.generate(job, domain=self.script.domain)

    def _completed(self, job: Job) -> None:
        self._job = None
        sampled = int(job.response)
        self.turns.sample(sampled)
        self.sampled += sampled
        if self.born is None:
            self.born = job.born
            assert self.born is not None
            self._shared.post(TrajectoryBorn(id=self.id, version=self.born))
        elif not self._shared.is_fresh(self.born):
            return  # too old to train on: the Cancel that says so is on its way
        self._shared.arrive(self.id, self._act)

    def _act(self) -> None:
        shared = self._shared
        self._timer = shared.loop.after(shared.call_s + self._turn.step_s, self._observed)

    def _observed(self) -> None:
        self._timer = None
        turns, script = self.turns, self.script.turns
        is_last = turns.count + 1 == len(script)
        stop = turns.take(terminated=is_last, truncated=False)
        if stop is None:
            self._turn = script[turns.count]
            stop = turns.show(self._turn.reads)
        if stop is None:
            self._shared.arrive(self.id, self._generate)
            return
        self._shared.generation.forget(self.id)
        self._shared.post(TrajectoryFinished(info=self._info(stop)))

    def _info(self, stop: StopReason) -> TrajectoryInfo:
        assert self.born is not None
        return TrajectoryInfo(
            id=self.id,
            born=self.born,
            reward=None if self.script.score_s is not None else self.script.reward,
            success=self.script.reward > 0.5,
            turns=self.turns.count,
            cost=self.sampled,
            stop=stop,
        )
