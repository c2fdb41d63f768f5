"""The torch engine: continuous batching of requests over one model and one cache of rows.

    add ──> waiting ──admit, in order──> running ──step──> Completion
                                            │ the session stays in its row, idle
    next turn of the session: only tokens the row does not hold are computed

One step is one forward pass: one token of every decoding sequence, and up to `prefill_tokens`
tokens of sequences with more to compute (new prompts, and all tokens again after new weights). A
prompt that starts like another session's copies its keys and values, even if both are computed in
the same step.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig

from rollart.errors import ConfigError, InvariantError, ModelError
from rollart.inference.torch.batch import StepPlan, StepPlanner, Waiting, order, pack
from rollart.inference.torch.cache import KVCache, Session, Sessions
from rollart.inference.torch.model import Model
from rollart.inference.torch.options import TorchEngineOptions
from rollart.inference.torch.sampler import read_filters, sample
from rollart.models.architecture import read_architecture, resolve_config
from rollart.models.files import is_checked
from rollart.models.loader import find_device, load_weights
from rollart.types import Completion, FinishReason, Request, TrajectoryId, Version

_COUNTERS = ("prefill_tokens", "reused_tokens", "sampled_tokens", "steps", "recomputed_tokens")


class TorchEngine:
    """One inference replica on one torch device.

    Example:
        >>> engine = TorchEngine.open(
        ...     Path("models/tiny"), options=TorchEngineOptions(), version=Version(0), threads=2
        ... )

    """

    Options = TorchEngineOptions

    @classmethod
    def open(
        cls, model: Path, *, options: TorchEngineOptions, version: Version, threads: int
    ) -> "TorchEngine":
        """Open an engine on a checkpoint's directory.

        `threads` is used on a CPU if the options set none; on a GPU torch's default is best.
        """
        if not options.threads and options.device == "cpu":
            options = replace(options, threads=threads)
        return cls(
            model_config=resolve_config(model),
            weights=load_weights(model),
            options=options,
            version=version,
        )

    def __init__(
        self,
        *,
        model_config: PreTrainedConfig | Mapping[str, Any],
        weights: Mapping[str, Any],
        options: TorchEngineOptions,
        version: Version,
    ) -> None:
        if options.threads:
            torch.set_num_threads(options.threads)
        self._architecture = shape = read_architecture(model_config)
        if options.max_length > shape.max_positions:
            raise ConfigError(
                "engine.torch.max_length",
                options.max_length,
                f"the model has {shape.max_positions} positions (max_position_embeddings)",
            )
        device = find_device(options.device, field="engine.torch.device")
        dtype = getattr(torch, options.dtype)
        rows = options.rows + options.cached_sessions
        with torch.inference_mode():
            self._model = Model(
                shape,
                weights=weights,
                max_length=options.max_length,
                device=device,
                dtype=dtype,
                threads=options.threads or torch.get_num_threads(),
            )
            self._cache = KVCache(
                (rows, shape.key_heads, options.max_length, shape.head_dim),
                layers=shape.layers,
                device=device,
                dtype=dtype,
            )
        self._options = options
        self._version = version
        self._waiting: Waiting = deque()
        self._running: dict[TrajectoryId, Session] = {}
        self._sessions = Sessions(rows)
        self._planner = StepPlanner(options, sessions=self._sessions, cache=self._cache)
        self._counters: dict[str, int] = dict.fromkeys(_COUNTERS, 0)

    @property
    def version(self) -> Version:
        """The version of the loaded weights."""
        return self._version

    @property
    def busy(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._running or self._waiting)

    def add(self, request: Request) -> None:
        """Queue a request."""
        count, limit = len(request.tokens), self._options.max_length
        if count >= limit:
            raise ConfigError(
                "engine.torch.max_length",
                limit,
                f"session {request.session} sent {count} tokens: raise the limit or send fewer",
            )
        if not request.tokens:
            raise ModelError(f"session {request.session} sent no tokens: send at least one")
        vocab = self._architecture.vocab
        if min(request.tokens) < 0 or max(request.tokens) >= vocab:
            raise ModelError(
                f"session {request.session} sent token ids outside the model's vocabulary of "
                f"{vocab}: use the model's own tokenizer"
            )
        if self._has_request(request.session):
            raise InvariantError(f"session {request.session} already has a request in the engine")
        self._waiting.append((request, read_filters(request.sampling)))

    def abort(self, session: TrajectoryId) -> Completion | None:
        """Stop the session's request and return its tokens so far; None if it has no request."""
        if session in self._running:
            return self._finish(self._running[session], "abort")
        for entry in self._waiting:
            if entry[0].session == session:
                self._waiting.remove(entry)
                return Completion(
                    session=session,
                    turn=entry[0].turn,
                    tokens=(),
                    logprobs=(),
                    versions=(),
                    finish="abort",
                )
        return None

    def forget(self, session: TrajectoryId) -> None:
        """Drop the session's cached prefix, after its running request if it has one."""
        found = self._sessions.find(session)
        if found is None:
            return
        if session in self._running:
            found.forgotten = True
        else:
            self._sessions.close(found)

    def step(self) -> list[Completion]:
        """Compute one batch and sample; return completed requests."""
        if not self.busy:
            return []
        with torch.inference_mode():
            plan = self._planner.plan(self._running, self._waiting)
            packed = order(plan.pieces)
            pieces = [plan.pieces[index] for index in packed]
            batch = pack(
                pieces, copies=plan.copies, cache=self._cache, window=self._architecture.window
            )
            logits = self._model.forward(batch, self._cache)
            for session in plan.sessions:
                session.held = session.planned
            self._count(plan)
            drawing = [plan.sessions[index] for index in packed if plan.pieces[index].samples]
            return self._draw(drawing, logits) if drawing else []

    def update(self, version: Version, weights: Mapping[str, Any], *, keep_kv: bool) -> None:
        """Replace the weights between two steps; running requests continue."""
        with torch.inference_mode():
            self._model.load(weights)
        self._version = version
        if not keep_kv:
            self._sessions.invalidate()
        elif is_checked("prefixes"):
            self._sessions.keep_running()

    def stats(self) -> Mapping[str, float]:
        """Return the counters since the engine was created.

        `prefill_tokens` were computed for the first time, `recomputed_tokens` again after new
        weights; `reused_tokens` of prompts were in the row already or copied from another.
        """
        return dict(self._counters)

    def _has_request(self, session: TrajectoryId) -> bool:
        return session in self._running or any(
            request.session == session for request, _ in self._waiting
        )

    def _count(self, plan: StepPlan) -> None:
        self._counters["steps"] += 1
        self._counters["prefill_tokens"] += plan.prefill_tokens
        self._counters["reused_tokens"] += plan.reused_tokens
        self._counters["recomputed_tokens"] += plan.recomputed_tokens

    def _draw(self, sessions: list[Session], logits: torch.Tensor) -> list[Completion]:
        """Sample the next token of each session and finish those that are done."""
        runs = [session.running for session in sessions if session.running is not None]
        tokens, logprobs = sample(
            logits,
            [running.filters for running in runs],
            [running.places[len(running.logprobs)] for running in runs],
        )
        self._counters["sampled_tokens"] += len(tokens)
        completions: list[Completion] = []
        for session, running, token, logprob in zip(sessions, runs, tokens, logprobs, strict=True):
            session.tokens.append(token)
            running.logprobs.append(logprob)
            running.versions.append(self._version)
            if token in running.request.stop:
                completions.append(self._finish(session, "stop"))
            elif len(running.logprobs) == len(running.places):
                completions.append(self._finish(session, "length"))
        return completions

    def _finish(self, session: Session, reason: FinishReason) -> Completion:
        del self._running[session.id]
        return self._sessions.finish(session, reason)
