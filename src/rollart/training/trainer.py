"""The trainer: one policy, one optimizer, one version counter.

A step turns a batch into one new version:

    decode → advantages → columns ─┬→ [proximal, reference: one pass each, only if needed]
                                   └→ per minibatch: pack → forward → loss → backward → AdamW

What the advantages, the token weights and the losses are is the algorithm's (`algorithms`).

The version advances by one per `step`, whatever the batch held, so steps and versions can be
counted for each other. An update happens whole or not at all: if the loss or the gradient norm is
not finite, weights and moments stay as they are. All randomness is derived from (seed, version), so
a resumed run deals the same minibatches.

The trainer runs where its host put it, so its arguments are plain values: arrays in, floats out.

Several trainers are one: a group of workers, each a rank (`distributed.ranks.Rank`), that gets the
same calls with the same arguments and holds a share of the weights. Every rank computes for the
whole batch what does not need the model (advantages, dealing, token weights); of the sequences each
computes its own. Losses, gradients and measures are added up, so a step is the same step at any
number of ranks.
"""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rollart.clock import SystemClock
from rollart.errors import ConfigError, InvariantError
from rollart.ports import Array, WeightStore
from rollart.seeds import derive_seed
from rollart.training.batch import Batch, RankShare, deal_minibatches, decode, find_moving
from rollart.training.checkpoint import TrainingProgress, load_checkpoint, save_checkpoint
from rollart.training.distributed.process_group import ProcessGroup, RankInfo, join
from rollart.training.distributed.rendezvous import (
    LOOPBACK,
    alone,
    enter_meeting,
    open_meeting,
    use_interface_of,
)
from rollart.training.distributed.sharding import local, settle, whole
from rollart.training.export import arrays_of, export_model, open_store, publish_weights
from rollart.training.guard import EngineSampling, Gap, Guard, comparable
from rollart.training.losses import Columns, compute_advantages, evaluate, logprobs_of
from rollart.training.metrics import Measures, StepRecord, advantage_deviation, batch_metrics
from rollart.training.model import Model, attention_cost, is_packable
from rollart.training.options import TrainingOptions, read_algorithm
from rollart.training.packing import MicroBatch, lay_out
from rollart.training.policy import KeptWeights, Policy, divide, load_policy
from rollart.training_ports import Algorithm
from rollart.types import Json, StepReport, Version
from rollart.types.tokens import Floats


def make_optimizer(model: Model, options: TrainingOptions) -> torch.optim.AdamW:
    """Return AdamW in its fused form; only matrices decay."""
    parameters = [value for value in model.parameters() if value.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": options.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=options.learning_rate,
        betas=options.betas,
        eps=options.eps,
        fused=True,
    )


def apply_gradients(
    optimizer: torch.optim.Optimizer, *, learning_rate: float, max_norm: float, is_sound: bool
) -> float | None:
    """Clip and apply the gradients; return their norm before clipping, or None if refused."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    limit = max_norm if max_norm > 0 else math.inf
    norm = float(whole(torch.nn.utils.clip_grad_norm_(parameters, limit)))
    is_sound = is_sound and math.isfinite(norm)
    if is_sound:
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm if is_sound else None


_PROBED = 32
"""Weights of each parameter that are looked at before and after an update."""


class WeightProbe:
    """A few weights of each parameter that have a gradient, as they are before an update."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._parameters = [p for p in parameters if p.grad is not None]
        self._has_gradient = [_few(p.grad) != 0 for p in self._parameters]
        self._before = [_few(p).clone() for p in self._parameters]

    def moved(self) -> list[float]:
        """Return how many of them moved, and how many have a gradient."""
        pairs = zip(self._parameters, self._before, self._has_gradient, strict=True)
        moved = sum(int(((_few(p) != old) & has).sum()) for p, old, has in pairs)
        return [float(moved), float(sum(int(has.sum()) for has in self._has_gradient))]


def _few(tensor: torch.Tensor) -> torch.Tensor:
    """Return evenly spread elements of this rank's share of a tensor."""
    flat = local(tensor.detach()).flatten()
    return flat[:: max(1, flat.numel() // _PROBED)]


class TorchTrainer:
    """Makes optimizer steps with PyTorch, alone or as one rank of several.

    Example:
        >>> trainer = TorchTrainer(model="models/tiny", algorithm={"type": "rloo"}, store=store)
        >>> trainer.step(encode(groups)).metrics["updates"]
        1.0
        >>> trainer.publish()
        1

    """

    def __init__(  # noqa: PLR0913 plain values, because it is made in another process
        self,
        *,
        model: str,
        options: TrainingOptions | Mapping[str, Any] | None = None,
        algorithm: Algorithm | Mapping[str, Any] | None = None,
        store: WeightStore | Mapping[str, Json] | None = None,
        engine: Mapping[str, Any] | None = None,
        version: int = 0,
        rank: int = 0,
        world_size: int = 1,
        address: str = LOOPBACK,
    ) -> None:
        """Load the model; one of several ranks then waits for `join`.

        `engine` says how the engine that serves these weights samples; the guard compares with it.
        """
        self._options = options = _read_options(options)
        self._guard = Guard(options, None if engine is None else EngineSampling(**engine))
        self._kept: KeptWeights | None = None
        if algorithm is None or isinstance(algorithm, Mapping):
            algorithm = read_algorithm(algorithm or {})
        self._algorithm = algorithm
        self._place = RankInfo(rank=rank, world_size=world_size, address=address)
        if world_size != options.ranks:
            raise ConfigError("training.ranks", options.ranks, f"the host made {world_size}")
        torch.set_num_threads(options.threads)
        self._clock = SystemClock()
        self._has_store = store is not None
        self._store = open_store(store) if rank == 0 else None
        self._version = version
        self._steps = 0
        self._table: Any = None
        self._world = ProcessGroup()
        is_compared = algorithm.needs.reference
        self._loaded = policy = load_policy(model, options, is_compared=is_compared)
        self._share = RankShare(rank=rank, ranks=world_size, attention=attention_cost(policy.model))
        self._row_tokens = options.row_tokens if is_packable(policy.model) else 1
        if options.is_sharded and world_size == 1:
            self._enter(alone())
        elif world_size == 1:
            self._take(policy)

    def meeting(self) -> str:
        """Open the rendezvous on the first rank's machine; return its address."""
        options, place = self._options, self._place
        self._table, rendezvous = open_meeting(
            place.address, ranks=place.world_size, timeout_s=options.timeout_s
        )
        return rendezvous

    def join(self, rendezvous: str) -> None:
        """Join the other ranks at the rendezvous and keep this rank's share of the weights."""
        place, timeout_s = self._place, self._options.timeout_s
        if self._table is None:
            self._table = enter_meeting(rendezvous, ranks=place.world_size, timeout_s=timeout_s)
        use_interface_of(place.address)
        self._enter(self._table)

    @property
    def version(self) -> Version:
        """The version of the weights held."""
        return Version(self._version)

    def step(self, batch: Mapping[str, Array]) -> StepReport:
        """Make one optimizer step."""
        started_s = self._clock.now()
        options, version = self._options, self._version
        given, record = self._decode(batch), StepRecord()
        checked = given.without_cuts() if self._algorithm.needs.whole_attempts else given
        columns = Columns.of(checked, version=version, device=options.device)
        guarded = self._compare(checked, columns) if self._guard.is_on else {}
        advantages = self._advantages(checked, columns, record)
        moving = find_moving(
            checked,
            advantages,
            idle_tokens=self._algorithm.needs.idle_tokens,
            skip_zero_advantage=options.skip_zero_advantage,
        )
        shares = deal_minibatches(moving, options, version=version)
        if shares:
            self._prepare(checked, columns, moving, record, is_moved=len(shares) > 1)
        else:
            self._observe(checked, columns, record)
        seed = derive_seed(options.seed, version, self._world.rank)
        with self._policy.tuning.learning(self._model, seed=seed):
            for share in shares:
                self._update(checked, columns, share, moving, record)
        metrics = record.metrics() | batch_metrics(given, version=version)
        metrics |= columns.shares(checked.sampled)
        metrics["advantage_std"] = advantage_deviation(checked, advantages)
        metrics["masked_trajectories"] = float(len(given.rewards) - len(checked.rewards))
        metrics["learning_rate"] = self._learning_rate()
        metrics["no_signal"] = float(not shares)
        metrics |= guarded | record.moved
        self._version, self._steps = version + 1, self._steps + 1
        self._keep(checked)
        metrics["step_s"] = self._clock.now() - started_s
        return StepReport(version=self.version, metrics=metrics)

    def publish(self) -> Version:
        """Put the current weights into the weight store, in fp32, by Hugging Face name."""
        if not self._has_store:
            raise InvariantError(
                "the trainer was made without a weight store: nothing to publish to"
            )
        publish_weights(self._policy, self._store, self.version)
        return self.version

    def adapter(self) -> dict[str, Array]:
        """Return the adapters alone, in fp32, under the names of peft's files; all by rank 0."""
        gathered = arrays_of(self._policy.tuning.adapter(self._model))
        return {name: value for name, value in gathered if self._world.is_first}

    def save(self, directory: str) -> None:
        """Write weights, optimizer, schedule and RNG state."""
        save_checkpoint(
            Path(directory),
            policy=self._policy,
            optimizer=self._optimizer,
            progress=TrainingProgress(version=self._version, steps=self._steps),
        )

    def load(self, directory: str) -> Version:
        """Restore what `save` wrote, at any number of ranks; return the version."""
        progress = load_checkpoint(Path(directory), policy=self._policy, optimizer=self._optimizer)
        self._version, self._steps = progress.version, progress.steps
        self._kept = None
        return self.version

    def export(self, directory: str) -> None:
        """Write a Hugging Face model directory, adapters merged, that anything can load."""
        export_model(self._policy, Path(directory))

    def close(self) -> None:
        """Leave the other ranks."""
        self._world.leave()

    def _enter(self, table: Any) -> None:
        options = self._options
        world = join(self._place, table, device=options.device, timeout_s=options.timeout_s)
        self._take(divide(self._loaded, world, options))

    def _take(self, policy: Policy) -> None:
        self._policy = policy
        self._model, self._world = policy.model, policy.world
        self._optimizer = make_optimizer(policy.model, self._options)

    def _decode(self, batch: Mapping[str, Array]) -> Batch:
        checked = decode(batch)
        largest = int(checked.tokens.max(initial=0))
        vocabulary = self._model.get_input_embeddings().num_embeddings
        if largest >= vocabulary:
            raise InvariantError(
                f"the batch holds token {largest}, the model {self._policy.source} "
                f"knows {vocabulary}: it was sampled by another model"
            )
        return checked

    def _learning_rate(self) -> float:
        return self._options.learning_rate_at(self._steps + 1)

    def _lay_out(self, batch: Batch, sequences: NDArray[np.int64]) -> list[MicroBatch]:
        return lay_out(
            batch,
            sequences.tolist(),
            row_tokens=self._row_tokens,
            micro_batch_tokens=self._options.micro_batch_tokens,
            share=self._share,
        )

    def _advantages(self, batch: Batch, columns: Columns, record: StepRecord) -> Floats:
        """Set and return the advantages of the whole batch: on every rank the same."""
        if self._algorithm.needs.scores:
            has_tokens = batch.sampled_counts > 0
            self._prepare(batch, columns, has_tokens, record, is_moved=True)
        view = batch.view(
            version=self._version,
            proximal=None if columns.proximal is None else columns.proximal.cpu().numpy(),
            reference=None if columns.reference is None else columns.reference.cpu().numpy(),
        )
        advantages, extra = compute_advantages(self._algorithm, view)
        columns.set_advantages(advantages, extra)
        return advantages

    def _prepare(
        self,
        batch: Batch,
        columns: Columns,
        sequences: NDArray[np.bool_],
        record: StepRecord,
        *,
        is_moved: bool,
    ) -> None:
        """Compute the log-probs the loss compares with, where the forward does not give them.

        `is_moved`: weights will have moved before the last forward, so it gives no proximal ones.
        """
        started_s = self._clock.now()
        micros = self._lay_out(batch, np.flatnonzero(sequences))
        if is_moved and columns.proximal is None:
            columns.proximal = self._logprobs(self._model, micros, columns)
        if self._algorithm.needs.reference and columns.reference is None:
            if self._policy.reference is not None:
                reference = self._policy.reference
                columns.reference = self._logprobs(reference, micros, columns, is_whole=True)
            else:
                with self._policy.tuning.as_base(self._model):
                    columns.reference = self._logprobs(self._model, micros, columns, is_whole=True)
        record.forward_s += self._clock.now() - started_s

    def _logprobs(
        self, model: Model, micros: list[MicroBatch], columns: Columns, *, is_whole: bool = False
    ) -> torch.Tensor:
        """Return the log-probs of all ranks' tokens: who needs one may not be who computed it."""
        result = self._world.add_up(logprobs_of(model, micros, columns, is_whole=is_whole))
        settle(model)
        return result

    def _compare(self, batch: Batch, columns: Columns) -> dict[str, float]:
        """Compare the engine's log-probs of a sample of the batch with the model's own."""
        guard, kept = self._guard, self._kept
        sequences = guard.choose(batch, version=self._version)
        if len(sequences):
            return guard.judge(self._gap(batch, columns, sequences, self._version))
        if kept is None:
            return {}
        sequences = guard.choose(batch, version=kept.version)
        if len(sequences):
            self._kept = None
            with kept.put_back(self._policy):
                gap = self._gap(batch, columns, sequences, kept.version)
            return guard.judge(gap)
        if int(batch.versions.max(initial=-1)) > kept.version:
            self._kept = None
        return {}

    def _keep(self, batch: Batch) -> None:
        """Keep the new weights for the guard if batches hold no tokens of the present version."""
        is_stale = not comparable(batch, self._version - 1).any()
        if self._guard.is_on and self._kept is None and is_stale:
            self._kept = KeptWeights(self._policy, self._version)

    @torch.no_grad()
    def _gap(
        self, batch: Batch, columns: Columns, sequences: NDArray[np.int64], version: int
    ) -> Gap:
        """Score sequences in rows as long as the batch's own, so that they share them as there."""
        options = self._options
        row_tokens = self._row_tokens or int(np.diff(batch.offsets).max()) - 1
        micros = lay_out(
            batch,
            sequences.tolist(),
            row_tokens=row_tokens,
            micro_batch_tokens=options.micro_batch_tokens,
            share=self._share,
        )
        found = self._logprobs(self._model, micros, columns)
        return self._guard.compare(batch, found.cpu().numpy(), sequences=sequences, version=version)

    @torch.no_grad()
    def _observe(self, batch: Batch, columns: Columns, record: StepRecord) -> None:
        """Measure a batch without signal: nothing moves."""
        started_s = self._clock.now()
        for micro in self._lay_out(batch, np.flatnonzero(batch.sampled_counts)):
            evaluate(
                self._model,
                micro,
                columns,
                algorithm=self._algorithm,
                measures=record.measures,
            )
        settle(self._model)
        record.measures.gather(self._world)
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
        columns.weigh(self._algorithm, batch, share)
        measures = Measures()
        for micro in self._lay_out(batch, share[moving[share]]):
            begun_s = self._clock.now()
            loss = evaluate(
                self._model, micro, columns, algorithm=self._algorithm, measures=measures
            )
            scored_s = self._clock.now()
            loss.backward()
            record.forward_s += scored_s - begun_s
            record.backward_s += self._clock.now() - scored_s
        measures.gather(self._world)
        begun_s = self._clock.now()
        probe = WeightProbe(self._optimizer) if self._guard.is_on and not record.moved else None
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
            if probe is not None:
                moved, counted = self._world.total(probe.moved())
                record.moved = self._guard.judge_update(
                    moved / max(counted, 1.0), learning_rate=self._learning_rate()
                )
            record.measures.merge(measures)
        record.optimizer_s += self._clock.now() - begun_s


def _read_options(options: TrainingOptions | Mapping[str, Any] | None) -> TrainingOptions:
    return options if isinstance(options, TrainingOptions) else TrainingOptions.read(options or {})
