"""The scripted engine: an engine without a model, for tests and benchmarks of everything else.

Its tokens depend on the request alone. In all other respects it follows the port: queue, steps,
versions across updates, aborts with partial output, counters.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from rollart.constraints import AtLeast, NonEmpty, check_fields
from rollart.errors import ConfigError, InvariantError
from rollart.ports import Array
from rollart.seeds import derive_seed
from rollart.types import Completion, FinishReason, Request, TrajectoryId, Version

Script = Callable[[Request], Sequence[int]]
"""Returns a request's tokens, which are then cut at its first stop token and token budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomScript:
    """Draws every token uniformly from `tokens`, using the request's seed.

    Example:
        >>> RandomScript(tokens=(5, 6, 7))

    """

    tokens: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.tokens:
            raise ConfigError("tokens", self.tokens, "give at least one token id")

    def __call__(self, request: Request) -> tuple[int, ...]:
        """Return as many draws as the request allows."""
        count = len(self.tokens)
        return tuple(
            self.tokens[derive_seed(request.seed, place) % count]
            for place in range(request.sampling.max_tokens)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedEngineOptions:
    """Options of the engine "scripted", which draws tokens at random and needs no model.

    Example:
        >>> ScriptedEngineOptions(tokens=(1, 2, 3), tokens_per_step=4)

    """

    tokens: Annotated[tuple[int, ...], NonEmpty("give at least one token id")] = tuple(range(16))
    """Token ids it draws from, each as likely as the others."""
    tokens_per_step: Annotated[int, AtLeast(1)] = 1
    """Tokens each request samples in one step."""
    rows: Annotated[int, AtLeast(1)] = 1 << 30
    """Most requests that sample in one step; further ones wait."""

    def __post_init__(self) -> None:
        check_fields(self, "engine.options")


@dataclass(slots=True, kw_only=True)
class _Running:
    request: Request
    script: tuple[int, ...]
    finish: FinishReason
    versions: list[Version] = field(default_factory=list[Version])
    is_mixed: bool = False
    """Whether it kept what it had read under older weights."""

    def complete(self, finish: FinishReason, logprob: float) -> Completion:
        count = len(self.versions)
        return Completion(
            session=self.request.session,
            turn=self.request.turn,
            tokens=self.script[:count],
            logprobs=(logprob,) * count,
            versions=tuple(self.versions),
            finish=finish,
        )


class ScriptedEngine:
    """An Engine whose completions are computed from the request.

    Example:
        >>> engine = ScriptedEngine(lambda request: (7, 8, 0), tokens_per_step=3)

    """

    Options = ScriptedEngineOptions
    serves_weights = False

    @classmethod
    def open(
        cls, model: Path, *, options: ScriptedEngineOptions, version: Version, threads: int
    ) -> "ScriptedEngine":
        """Make an engine that draws tokens evenly; neither model nor threads matter to it."""
        del model, threads
        return cls(
            tokens=options.tokens,
            version=version,
            tokens_per_step=options.tokens_per_step,
            rows=options.rows,
        )

    def __init__(
        self,
        script: Script | None = None,
        *,
        tokens: Sequence[int] = tuple(range(16)),
        version: Version = Version(0),  # noqa: B008
        tokens_per_step: int = 1,
        rows: int = 1 << 30,
    ) -> None:
        if tokens_per_step < 1:
            raise ConfigError("tokens_per_step", tokens_per_step, "must be at least 1")
        self._script = script or RandomScript(tokens=tuple(tokens))
        self._logprob = 0.0 if script else -math.log(len(tokens))
        self._version = version
        self._tokens_per_step = tokens_per_step
        self._rows = rows
        self._requests: dict[TrajectoryId, _Running] = {}
        self._held: dict[TrajectoryId, int] = {}
        self._counters: dict[str, int] = dict.fromkeys(
            ("prefill_tokens", "reused_tokens", "sampled_tokens", "steps", "recomputed_tokens"), 0
        )

    @property
    def version(self) -> Version:
        """The version of the weights it was last given."""
        return self._version

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._requests)

    def add(self, request: Request) -> None:
        """Queue a request and choose its tokens."""
        if request.session in self._requests:
            raise InvariantError(f"session {request.session} already has a request in the engine")
        if request.sampling.max_tokens < 1:
            raise ConfigError(
                "sampling.max_tokens", request.sampling.max_tokens, "must be at least 1"
            )
        script = tuple(self._script(request))[: request.sampling.max_tokens]
        if not script:
            raise InvariantError(f"the script gave no tokens for session {request.session}")
        stops = [place for place, token in enumerate(script) if token in request.stop]
        finish: FinishReason = "stop" if stops else "length"
        script = script[: stops[0] + 1] if stops else script
        self._requests[request.session] = _Running(request=request, script=script, finish=finish)

    def abort(self, session: TrajectoryId) -> Completion | None:
        """Stop the session's request and return its tokens so far; None if it has no request."""
        if session not in self._requests:
            return None
        return self._finish(self._requests[session], "abort")

    def forget(self, session: TrajectoryId) -> None:
        """Forget how much of the session was read."""
        self._held.pop(session, None)

    def step(self) -> list[Completion]:
        """Sample `tokens_per_step` tokens for each request; return completed requests."""
        if not self._requests:
            return []
        self._counters["steps"] += 1
        done: list[Completion] = []
        for running in list(self._requests.values())[: self._rows]:
            if not running.versions:
                self._read(running.request)
            left = len(running.script) - len(running.versions)
            count = min(left, self._tokens_per_step)
            running.versions += [self._version] * count
            self._counters["sampled_tokens"] += count
            if count == left:
                done.append(self._finish(running, running.finish))
        return done

    def update(self, version: Version, weights: Mapping[str, Array], *, keep_kv: bool) -> None:
        """Set the version; the weights are ignored."""
        self._version = version
        self._held.clear()
        for running in self._requests.values():
            if running.versions and not keep_kv:
                count = len(running.request.tokens) + len(running.versions) - 1
                self._counters["recomputed_tokens"] += count
            running.is_mixed = bool(running.versions) and keep_kv

    def stats(self) -> Mapping[str, float]:
        """Return the counters since the engine was created."""
        return dict(self._counters)

    def _read(self, request: Request) -> None:
        reused = min(self._held.get(request.session, 0), len(request.tokens) - 1)
        self._counters["reused_tokens"] += reused
        self._counters["prefill_tokens"] += len(request.tokens) - reused

    def _finish(self, running: _Running, finish: FinishReason) -> Completion:
        request = running.request
        del self._requests[request.session]
        if not running.is_mixed:
            self._held[request.session] = max(0, len(request.tokens) + len(running.versions) - 1)
        return running.complete(finish, self._logprob)
