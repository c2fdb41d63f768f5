"""The trainer: one policy, one optimizer, one version counter.

A step turns a batch into one new version:

    decode → advantages → columns ─┬→ [proximal, reference: one pass each, only if needed]
                                   └→ per minibatch: pack → forward → loss → backward → AdamW

The version advances by one per `step`, whatever the batch held, so whoever counts steps and
whoever counts versions agree. An update whose loss or gradient is not finite is dropped before it
touches a weight. All randomness is derived from (seed, version), so a resumed run deals the same
minibatches.

It runs where its host put it, so its arguments are plain values: arrays in, floats out.
"""

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rollart.clock import SystemClock
from rollart.errors import ConfigError, InvariantError
from rollart.ports import Array, WeightStore
from rollart.seeds import derive_seed
from rollart.training.advantage import compute_advantages
from rollart.training.batch import Batch, decode
from rollart.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from rollart.training.measures import Measures, StepRecord, batch_metrics
from rollart.training.model import is_packable, load_model
from rollart.training.objective import Columns, evaluate, logprobs_of
from rollart.training.optimizer import apply_gradients, make_optimizer
from rollart.training.options import TrainingOptions
from rollart.training.packing import MicroBatch, lay_out
from rollart.types import Json, StepReport, Version

_STORE_OPENER = "rollart.weights.opening:open_store"
"""Opens the weight store when none is handed over: named, not imported, as hosts name actors."""


class TorchTrainer:
    """Makes optimizer steps with PyTorch in one process."""

    def __init__(
        self,
        *,
        model: str,
        options: TrainingOptions | Mapping[str, Any] | None = None,
        store: WeightStore | Mapping[str, Json] | None = None,
        version: int = 0,
    ) -> None:
        self._options = _read_options(options)
        torch.set_num_threads(self._options.threads)
        self._clock = SystemClock()
        self._source = model
        self._model = self._load()
        self._reference = self._load() if self._options.kl_coefficient > 0 else None
        self._row_tokens = self._options.row_tokens if is_packable(self._model) else 1
        self._optimizer = make_optimizer(self._model, self._options)
        self._store = _open_store(store)
        self._version = version
        self._steps = 0

    @property
    def version(self) -> Version:
        """The version of the weights held."""
        return Version(self._version)

    def step(self, batch: Mapping[str, Array]) -> StepReport:
        """Make one optimizer step."""
        started_s = self._clock.now()
        options, version = self._options, self._version
        checked = self._decode(batch)
        advantages = compute_advantages(options.advantage, checked.rewards, checked.groups)
        columns = Columns.of(checked, advantages, version=version, device=options.device)
        moving = self._moving(checked, advantages)
        shares = self._deal(checked, moving)
        record = StepRecord()
        if shares:
            self._prepare(checked, columns, moving, len(shares), record)
        else:
            self._observe(checked, columns, record)
        for share in shares:
            self._update(checked, columns, share, moving, record)
        metrics = record.metrics() | batch_metrics(checked, advantages, version=version)
        metrics["learning_rate"] = self._learning_rate()
        metrics["no_signal"] = float(not shares)
        self._version, self._steps = version + 1, self._steps + 1
        metrics["step_s"] = self._clock.now() - started_s
        return StepReport(version=self.version, metrics=metrics)

    def publish(self) -> Version:
        """Put the current weights into the weight store, in fp32, by Hugging Face name."""
        if self._store is None:
            raise InvariantError(
                "the trainer was made without a weight store: nothing to publish to"
            )
        weights = {
            name: value.detach().float().cpu().numpy()
            for name, value in self._model.state_dict().items()
        }
        self._store.publish(self.version, weights)
        return self.version

    def save(self, directory: str) -> None:
        """Write weights, optimizer, schedule and RNG state."""
        save_checkpoint(
            Path(directory),
            model=self._model,
            source=self._source,
            optimizer=self._optimizer,
            progress=Progress(version=self._version, steps=self._steps),
        )

    def load(self, directory: str) -> Version:
        """Restore what `save` wrote; return the version."""
        progress = load_checkpoint(Path(directory), model=self._model, optimizer=self._optimizer)
        self._version, self._steps = progress.version, progress.steps
        return self.version

    def _load(self) -> Any:
        return load_model(self._source, dtype=self._options.dtype, device=self._options.device)

    def _decode(self, batch: Mapping[str, Array]) -> Batch:
        checked = decode(batch)
        largest = int(checked.tokens.max(initial=0))
        vocabulary = self._model.get_input_embeddings().num_embeddings
        if largest >= vocabulary:
            raise InvariantError(
                f"the batch holds token {largest}, the model {self._source} knows {vocabulary}: "
                "it was sampled by another model"
            )
        return checked

    def _learning_rate(self) -> float:
        rise = (self._steps + 1) / max(self._options.warmup_steps, 1)
        return self._options.learning_rate * min(1.0, rise)

    def _moving(self, batch: Batch, advantages: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Say which sequences can move the weights."""
        options = self._options
        has_tokens = batch.sampled_counts > 0
        if options.kl_coefficient > 0 or options.entropy_coefficient > 0:
            return has_tokens
        has_signal = has_tokens & (advantages != 0)
        return has_signal if options.skip_zero_advantage or not has_signal.any() else has_tokens

    def _deal(self, batch: Batch, moving: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
        """Deal all sequences to minibatches, differently each epoch; leave out idle minibatches."""
        count = len(batch.rewards)
        shares: list[NDArray[np.int64]] = []
        for epoch in range(self._options.epochs):
            seed = derive_seed(self._options.seed, self._version, epoch)
            order = np.random.default_rng(seed).permutation(count)
            split = np.array_split(order, self._options.minibatches)
            shares += [np.sort(share) for share in split if moving[share].any()]
        return shares

    def _lay_out(self, batch: Batch, sequences: NDArray[np.int64]) -> list[MicroBatch]:
        return lay_out(
            batch,
            sequences.tolist(),
            row_tokens=self._row_tokens,
            micro_batch_tokens=self._options.micro_batch_tokens,
        )

    def _prepare(
        self,
        batch: Batch,
        columns: Columns,
        moving: NDArray[np.bool_],
        updates: int,
        record: StepRecord,
    ) -> None:
        """Compute the log-probs the loss compares with, where the forward does not give them."""
        started_s = self._clock.now()
        micros = self._lay_out(batch, np.flatnonzero(moving))
        if updates > 1:
            columns.proximal = logprobs_of(self._model, micros, columns)
        if self._reference is not None:
            columns.reference = logprobs_of(self._reference, micros, columns)
        record.forward_s += self._clock.now() - started_s

    @torch.no_grad()
    def _observe(self, batch: Batch, columns: Columns, record: StepRecord) -> None:
        """Measure a batch without signal: nothing moves."""
        started_s = self._clock.now()
        for micro in self._lay_out(batch, np.flatnonzero(batch.sampled_counts)):
            evaluate(self._model, micro, columns, options=self._options, measures=record.measures)
        record.forward_s += self._clock.now() - started_s

    def _update(
        self,
        batch: Batch,
        columns: Columns,
        share: NDArray[np.int64],
        moving: NDArray[np.bool_],
        record: StepRecord,
    ) -> None:
        """Make one optimizer update on a minibatch, unless it would poison the weights."""
        columns.weigh(batch.sampled_counts, share, self._options)
        measures = Measures()
        for micro in self._lay_out(batch, share[moving[share]]):
            begun_s = self._clock.now()
            loss = evaluate(self._model, micro, columns, options=self._options, measures=measures)
            scored_s = self._clock.now()
            loss.backward()
            record.forward_s += scored_s - begun_s
            record.backward_s += self._clock.now() - scored_s
        begun_s = self._clock.now()
        norm = apply_gradients(
            self._optimizer,
            learning_rate=self._learning_rate(),
            max_norm=self._options.max_grad_norm,
            is_sound=math.isfinite(measures.sums["loss"]),
        )
        if norm is None:
            record.skipped += 1
        else:
            record.updates += 1
            record.grad_norm += norm
            record.measures.merge(measures)
        record.optimizer_s += self._clock.now() - begun_s


def _read_options(options: TrainingOptions | Mapping[str, Any] | None) -> TrainingOptions:
    if isinstance(options, TrainingOptions):
        return options
    known = {field.name for field in fields(TrainingOptions)}
    for name, value in (options or {}).items():
        if name not in known:
            raise ConfigError(f"training.{name}", value, "is not an option of the trainer")
    return TrainingOptions(**(options or {}))


def _open_store(store: WeightStore | Mapping[str, Any] | None) -> WeightStore | None:
    if not isinstance(store, Mapping):
        return store
    module, name = _STORE_OPENER.split(":")
    opener: Callable[..., WeightStore] = getattr(importlib.import_module(module), name)
    return opener(**store)
