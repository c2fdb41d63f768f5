"""Reinforcement learning of a robot policy, with the algorithms of rollart.

A chunk of actions is to an algorithm what a token is: it has a log-prob, an advantage, a weight and
an age, so GRPO and the others are used as they are. The noise of each chunk was kept, so its
log-prob under the present weights is exact:

    log p(a | o, e) = log N(a; mean(o, e), spread²)    over the actions that were carried out
    loss            = algorithm's loss + anchor · |mean(o, e) - mean of the imitation policy|²

A step happens whole or not at all, and the version advances by one whatever the batch held.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

import rollart
from rollart.errors import ConfigError, StorageError, UserError
from rollart.seeds import derive_seed
from rollart.training_ports import TokenColumns
from rollart.types import LossTerms, StepReport, TokenBatch, Trajectory, Version
from rollart_robot.player import log_density
from rollart_robot.runtime import (
    ONE_RANK,
    WEIGHTS,
    load_policy,
    read_tensors,
    steps_of,
    write_config,
)

_REST, _RECORD = "optimizer.safetensors", "trainer.json"
Arrays = Mapping[str, NDArray[Any]]


def encode(groups: Sequence[Sequence[Trajectory]]) -> dict[str, NDArray[Any]]:
    """Return a batch as arrays: one row for each chunk, and one value for each trajectory."""
    members = [member for group in groups for member in group]
    steps = [steps_of(each) for each in members]
    counts = [len(each) for each in steps]
    return {
        "states": np.concatenate([np.asarray(each.observations["states"]) for each in steps]),
        "noise": np.concatenate([np.asarray(each.latents["noise"]) for each in steps]),
        "actions": np.concatenate([np.asarray(each.actions) for each in steps]),
        "behaviour": np.concatenate([np.asarray(each.logprobs) for each in steps]),
        "versions": np.concatenate([np.array(each.versions, dtype=np.int64) for each in steps]),
        "chunk_rewards": np.concatenate([np.array(each.rewards) for each in steps]),
        "owners": np.repeat(np.arange(len(members)), counts),
        "rewards": np.array([each.reward for each in members], dtype=np.float64),
        "successes": np.array([each.success for each in members]),
        "groups": np.repeat(np.arange(len(groups)), [len(group) for group in groups]),
    }


class RobotTrainer:
    """Makes optimizer steps on a robot policy.

    Example:
        >>> trainer = RobotTrainer(model="runs/reach/checkpoints/step-003000", policy={...})
        >>> trainer.step(encode(groups)).metrics["updates"]
        1.0

    """

    def __init__(
        self,
        *,
        model: str,
        options: Mapping[str, Any] | None = None,
        algorithm: Mapping[str, Any] | None = None,
        policy: Mapping[str, Any] | None = None,
        store: Any = None,
        rank: int = 0,
        world_size: int = 1,
        address: str = "",
    ) -> None:
        del rank, address
        self._options = rollart.TrainingOptions.read(dict(options or {}))
        if world_size > 1:
            raise ConfigError("training.ranks", world_size, ONE_RANK)
        self._algorithm = rollart.read_algorithm(algorithm or {})
        if self._algorithm.needs.whole_attempts:
            fix = "a robot's attempts end by their time limit unless they succeed: leave it out"
            raise ConfigError("algorithm.mask_truncated_completions", True, fix)
        settings = {"spread": 0.1, "anchor": 0.05, **(policy or {})}
        self._spread, self._anchor = float(settings["spread"]), float(settings["anchor"])
        torch.set_num_threads(self._options.threads)
        self._reference = load_policy(Path(model))
        self._policy = load_policy(Path(model)).requires_grad_(True)
        self._executed = self._policy.options.executed
        weights = list(self._policy.parameters())
        decay = self._options.weight_decay
        self._optimizer = torch.optim.AdamW(
            [
                {"params": [each for each in weights if each.ndim > 1], "weight_decay": decay},
                {"params": [each for each in weights if each.ndim <= 1], "weight_decay": 0.0},
            ],
            lr=self._options.learning_rate,
            betas=self._options.betas,
            eps=self._options.eps,
        )
        self._store = None if store is None else _open_store(store)
        self._version = self._steps = 0

    def step(self, batch: Arrays) -> StepReport:
        """Make one optimizer step."""
        view, advantages, scores = self._judge(batch)
        totals: dict[str, list[float]] = {}
        updates = skipped = 0
        for share in self._minibatches(view, advantages):
            figures = self._update(batch, view, advantages, scores, share)
            updates, skipped = updates + ("loss" in figures), skipped + ("loss" not in figures)
            for name, value in figures.items():
                totals.setdefault(name, []).append(value)
        metrics = {name: float(np.mean(values)) for name, values in totals.items()}
        metrics |= {
            "updates": float(updates),
            "skipped": float(skipped),
            "no_signal": float(not updates and not skipped),
            "advantage_std": float(advantages.std()),
            "age_mean": float(view.ages.mean()),
            "learning_rate": self._learning_rate(),
        }
        self._version, self._steps = self._version + 1, self._steps + 1
        return StepReport(version=Version(self._version), metrics=metrics)

    def publish(self) -> Version:
        """Put the weights and normalisers into the weight store."""
        assert self._store is not None
        state = self._policy.state_dict()
        arrays = {name: value.detach().numpy().copy() for name, value in state.items()}
        self._store.publish(Version(self._version), arrays)
        return Version(self._version)

    def save(self, directory: str) -> None:
        """Write a checkpoint: a model directory, and what a resume needs."""
        place = Path(directory)
        rest = {"steps": torch.tensor(self._steps)}
        for index, moments in self._optimizer.state_dict()["state"].items():
            rest |= {f"{index}.{name}": value.clone() for name, value in moments.items()}
        record = {"version": self._version, "steps": self._steps, "spread": self._spread}
        try:
            self.export(directory)
            save_file(rest, place / _REST)
            (place / _RECORD).write_text(json.dumps(record), encoding="utf-8")
        except (OSError, SafetensorError) as error:
            raise StorageError(f"cannot write the checkpoint {place}: {error}") from error

    def export(self, directory: str) -> None:
        """Write a model directory."""
        place = Path(directory)
        place.mkdir(parents=True, exist_ok=True)
        write_config(place, self._policy)
        state = self._policy.state_dict()
        save_file({name: value.detach().clone() for name, value in state.items()}, place / WEIGHTS)

    def adapter(self) -> dict[str, NDArray[Any]]:
        """Return nothing: all weights are trained."""
        return {}

    def load(self, directory: str) -> Version:
        """Restore what `save` wrote."""
        place = Path(directory)
        try:
            self._policy.load_state_dict(read_tensors(place / WEIGHTS))
            moments: dict[int, dict[str, Tensor]] = {}
            for name, value in read_tensors(place / _REST).items():
                index, dot, which = name.partition(".")
                if dot:
                    moments.setdefault(int(index), {})[which] = value
            state = self._optimizer.state_dict()
            self._optimizer.load_state_dict({**state, "state": moments})
            record = json.loads((place / _RECORD).read_text(encoding="utf-8"))
            self._version, self._steps = int(record["version"]), int(record["steps"])
            spread = float(record.get("spread", self._spread))
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"{place}: not a checkpoint of this robot policy ({reason})") from error
        if spread != self._spread:
            fix = f"the checkpoint holds trajectories played with {spread}: use that"
            raise ConfigError("policy.spread", self._spread, fix)
        return Version(self._version)

    def close(self) -> None:
        """Close the weight store."""
        if self._store is not None:
            self._store.close()

    def _judge(self, batch: Arrays) -> tuple[TokenBatch, NDArray[np.float64], dict[str, Tensor]]:
        """Return the batch as an algorithm sees it, its advantages and the fixed log-probs."""
        owners = batch["owners"]
        scores = {"behaviour": _tensor(batch["behaviour"])}
        with torch.no_grad():
            scores["proximal"] = self._logprobs(batch, self._policy)
            scores["reference"] = self._logprobs(batch, self._reference)
        view = TokenBatch(
            rewards=batch["rewards"],
            successes=batch["successes"],
            groups=batch["groups"],
            sampled_counts=np.bincount(owners, minlength=len(batch["rewards"])),
            turn_rewards=batch["chunk_rewards"],
            turn_owners=owners,
            owners=owners,
            turns=np.arange(len(owners)),
            sampled=np.ones(len(owners), dtype=np.bool_),
            behaviour=batch["behaviour"].astype(np.float64),
            ages=self._version - batch["versions"],
            proximal=scores["proximal"].double().numpy(),
            reference=scores["reference"].double().numpy(),
        )
        advantages = np.asarray(self._algorithm.advantages(view), dtype=np.float64)
        if isinstance(self._algorithm, TokenColumns):
            columns = self._algorithm.columns(view, advantages)
            scores |= {f"column.{name}": _tensor(value) for name, value in columns.items()}
        return view, advantages, scores

    def _minibatches(
        self, view: TokenBatch, advantages: NDArray[np.float64]
    ) -> Iterator[NDArray[np.int64]]:
        """Deal all trajectories; yield the minibatches in which one has a signal."""
        moves = (advantages != 0) | self._algorithm.needs.idle_tokens
        is_moving = np.bincount(view.owners[moves], minlength=len(view.rewards)) > 0
        for epoch in range(self._options.epochs):
            seed = derive_seed(self._options.seed, self._version, epoch)
            dealt = np.random.default_rng(seed).permutation(len(view.rewards))
            for share in np.array_split(dealt, self._options.minibatches):
                if is_moving[share].any():
                    yield np.sort(share)

    def _update(
        self,
        batch: Arrays,
        view: TokenBatch,
        advantages: NDArray[np.float64],
        scores: Mapping[str, Tensor],
        share: NDArray[np.int64],
    ) -> dict[str, float]:
        """Make one update on some trajectories; return its figures, none if it was refused."""
        rows = np.flatnonzero(np.isin(view.owners, share))
        part = {name: batch[name][rows] for name in ("states", "noise", "actions")}
        means = self._means(part, self._policy)
        logprobs = log_density(_tensor(part["actions"]), means, self._spread)
        owners = np.searchsorted(share, view.owners[rows])
        counts = view.sampled_counts[share]
        weights = self._algorithm.token_weights(counts, view.groups[share])[owners]
        size = part["actions"].shape[-1] * part["actions"].shape[-2]
        entropy = size * (math.log(self._spread) + 0.5 * math.log(2 * math.pi * math.e))
        terms = LossTerms(
            logprobs=logprobs,
            proximal=scores["proximal"][rows],
            behaviour=scores["behaviour"][rows],
            reference=scores["reference"][rows] if self._algorithm.needs.reference else None,
            advantages=_tensor(advantages[rows]),
            entropies=torch.full_like(logprobs, entropy),
            owners=torch.from_numpy(owners),
            turns=torch.from_numpy(view.turns[rows]),
            weights=_tensor(weights),
            columns={
                name.removeprefix("column."): value[rows]
                for name, value in scores.items()
                if name.startswith("column.")
            },
        )
        found = self._algorithm.loss(terms)
        learned = (found.losses * terms.weights).sum()
        with torch.no_grad():
            anchors = self._means(part, self._reference)
        distance = (means - anchors).square().mean()
        loss = learned + self._anchor * distance
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = self._clip()
        figures = {"anchor_distance": float(distance.detach())}
        figures |= {
            name: float(value.detach().float().mean()) for name, value in found.means.items()
        }
        figures |= {
            name: float(value.detach().float().max()) for name, value in found.maxima.items()
        }
        if not (math.isfinite(norm) and math.isfinite(float(loss.detach()))):
            return {}
        for group in self._optimizer.param_groups:
            group["lr"] = self._learning_rate()
        self._optimizer.step()
        return {**figures, "loss": float(learned.detach()), "grad_norm": norm}

    def _clip(self) -> float:
        limit = self._options.max_grad_norm or math.inf
        parameters = [each for group in self._optimizer.param_groups for each in group["params"]]
        return float(torch.nn.utils.clip_grad_norm_(parameters, limit))

    def _learning_rate(self) -> float:
        return self._options.learning_rate_at(self._steps + 1)

    def _means(self, batch: Arrays, policy: Any) -> Tensor:
        means: Tensor = policy.mean(_tensor(batch["states"]), _tensor(batch["noise"]))
        return means[:, self._executed]

    def _logprobs(self, batch: Arrays, policy: Any) -> Tensor:
        return log_density(_tensor(batch["actions"]), self._means(batch, policy), self._spread)


def _tensor(array: NDArray[Any]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))


def _open_store(store: Any) -> rollart.WeightStore:
    """Return the given store, or open the one that options describe."""
    return rollart.open_store(**store) if isinstance(store, Mapping) else store
