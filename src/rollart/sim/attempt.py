"""SimAttempt: one attempt as it alternates between its environment and an engine.

    reset ─► (arrive ─► engine ─► arrive ─► environment)* ─► finished

Turns are counted by `control.episode.Turns`, the code that live episodes use; what each turn reads
and samples is in the script. An attempt does one thing at a time, so cancelling it means stopping
one timer or one `Job`: a turn that an engine completes.
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
    """One turn that an engine completes.

    Example:
        Job(session=7, context=500.0, response=80.0, on_done=print).tokens == 580.0

    """

    session: TrajectoryId
    context: float
    """Tokens of the prompt: the whole history."""
    response: float
    """Tokens to sample."""
    on_done: Callable[["Job"], None]
    """Called by its engine when the job is completed."""
    then: Callable[["Job"], None] | None = None
    """Called by the fleet after that."""
    born: Version | None = None
    """The version that sampled the first token."""
    sampled: float = 0.0
    """Tokens sampled before the engine last started it."""
    began: float = 0.0
    """The engine's clock when it began to sample."""
    entry: int = 0
    """Number of its entry in the engine's heap of ends."""
    seconds: float = 0.0
    """How long it takes on a `TimedEngine`, which models no hardware."""
    received: float = 0.0
    """Tokens of the context whose keys and values are transferred with it."""
    cached: float = 0.0
    """Tokens of the context that need no prefill."""
    state: str = "new"
    """Its stage in the engine: waiting, unread, reading, running, done or removed."""
    domain: str = ""
    """The domain of its task."""
    home: EngineId | None = None
    """The engine the fleet routed it to; None while no engine is open."""
    sampled_before: float = 0.0
    """Tokens sampled before it was routed there."""

    @property
    def tokens(self) -> float:
        """Tokens of prompt and response together."""
        return self.context + self.response


_NO_TURN = ScriptTurn(reads=0, samples=0, step_s=0.0)


class Generation(Protocol):
    """Completes the turns of attempts; `Fleet` is the implementation.

    Example:
        job = Job(session=7, context=500.0, response=80.0, on_done=print)
        fleet.generate(job, domain="math")  # calls print(job) when 80 tokens are sampled

    """

    def generate(self, job: Job, *, domain: str) -> None:
        """Route a job to an engine and complete it there."""
        ...

    def abort(self, job: Job) -> float:
        """Stop a job; return how many tokens it has sampled."""
        ...

    def forget(self, session: TrajectoryId) -> None:
        """Drop what is cached for a session that ended."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SimContext:
    """What all attempts of a run share.

    Example:
        SimContext(loop=loop, generation=fleet, arrive=lambda id_, action: action(),
                   post=inbox.append, is_fresh=scheduler.is_fresh, call_s=0.02)

    """

    loop: Loop
    generation: Generation
    arrive: Callable[[TrajectoryId, Callable[[], None]], None]
    """Run the action at once, or in lock-step when all attempts have arrived."""
    post: Callable[[Event], None]
    is_fresh: Callable[[Version], bool]
    call_s: float
    """Overhead of a call to an environment, in addition to its own work."""


class SimAttempt:
    """One attempt at one task."""

    __slots__ = (
        "_job",
        "_shared",
        "_started_s",
        "_timer",
        "_turn",
        "born",
        "id",
        "sampled",
        "script",
        "turns",
    )

    def __init__(self, launch: Launch, *, script: Script, shared: SimContext) -> None:
        self.id = launch.id
        self.script = script
        self.turns = Turns(script.limits)
        self.sampled = 0
        self.born: Version | None = None
        self._shared = shared
        self._started_s = 0.0
        self._timer: Timer | None = None
        self._job: Job | None = None
        self._turn = _NO_TURN
        """The current turn."""

    def start(self) -> None:
        """Reset the environment."""
        shared = self._shared
        self._started_s = shared.loop.now
        self._timer = shared.loop.after(shared.call_s + self.script.reset_s, self._opened)

    def cancel(self) -> None:
        """Stop the attempt and post `TrajectoryCancelled`."""
        if self._timer is not None:
            self._timer.cancel()
        tokens = self.sampled
        if self._job is not None:
            tokens += int(self._shared.generation.abort(self._job))
        self._shared.generation.forget(self.id)
        self._shared.post(TrajectoryCancelled(id=self.id, cost=tokens, turns=self.turns.count))

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
            raise InvariantError(
                f"the first prompt leaves no space to sample within {limit} tokens"
            )
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
            return  # too old to train on: the scheduler has already issued its Cancel
        self._shared.arrive(self.id, self._act)

    def _act(self) -> None:
        shared = self._shared
        self._timer = shared.loop.after(shared.call_s + self._turn.step_s, self._observed)

    def _observed(self) -> None:
        self._timer = None
        turns, script = self.turns, self.script.turns
        is_last = turns.count + 1 == len(script)
        is_late = self._shared.loop.now - self._started_s >= self.script.limit_s
        stop = turns.take(terminated=is_last, truncated=is_late)
        if stop == "truncated":
            stop = "time_limit"
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
