"""Engine and trainer on one tiny model, and transformers in float64 as the judge of both."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from benchmarks.fidelity_parts.matrix import VOCABULARY, Case
from rollart.errors import GuardError, UserError
from rollart.inference.torch.engine import TorchEngine
from rollart.inference.torch.options import TorchEngineOptions
from rollart.models.architecture import check_weights, read_architecture, resolve_config
from rollart.ports import Array
from rollart.training.batch import encode
from rollart.training.trainer import TorchTrainer
from rollart.types import (
    GroupId,
    Request,
    Sampling,
    Task,
    Trajectory,
    TrajectoryId,
    Turn,
    Version,
    token_trajectory,
)
from rollart.weights.store import MemoryStore

EXACT = 1e-4
"""Largest difference of a served model's log-probs, in nats."""
ENGINE = TorchEngineOptions(rows=8, cached_sessions=8, max_length=256, threads=1)
PLAIN = Sampling(max_tokens=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a case.

    Example:
        >>> Verdict(name="llama tied", error=3e-6)

    """

    name: str
    error: float = 0.0
    """Largest difference, in nats, of engine, trainer and the judge."""
    refusal: str = ""
    is_alarmed: bool = False
    """Whether the guard stopped it."""

    @property
    def is_silent(self) -> bool:
        """Whether it was served wrong without a word."""
        return not self.refusal and not self.error <= EXACT


def judge(case: Case, directory: Path) -> Verdict:
    """Serve a case and compare, unless someone refuses it."""
    model = case.write(directory / "model")
    trainer = None
    try:
        config = resolve_config(model)
        check_weights(model, read_architecture(config))
        engine = TorchEngine.open(model, options=ENGINE, version=Version(0), threads=1)
        trainer = open_trainer(model, lora=case.lora)
        played = play(engine, sessions=range(6))
        error = farthest(played, judge_of(model))
        report = trainer.step(batch_of(played))
        error = max(error, report.metrics["guard_gap_max"])
        if case.lora:
            update(engine, trainer)
            played = play(engine, sessions=range(6, 12))
            trainer.export(str(directory / "export"))
            error = max(error, farthest(played, judge_of(directory / "export")))
            metrics = trainer.step(batch_of(played)).metrics
            error = max(error, metrics["guard_gap_max"])
        return Verdict(name=case.name, error=error)
    except GuardError as alarm:
        return Verdict(name=case.name, error=float("inf"), refusal=str(alarm), is_alarmed=True)
    except UserError as refusal:
        return Verdict(name=case.name, refusal=str(refusal))
    finally:
        if trainer is not None:
            trainer.close()


def open_trainer(model: Path, *, lora: Sequence[str] = (), **options: Any) -> TorchTrainer:
    """Return a trainer that is guarded."""
    values = {"learning_rate": 1e-2, "max_grad_norm": 0.0, **options}
    if lora:
        values["lora"] = {"rank": 2, "targets": list(lora)}
    return TorchTrainer(
        model=str(model),
        options=values,
        algorithm={"type": "reinforce"},
        engine={},
        store=MemoryStore(),
    )


def update(engine: TorchEngine, trainer: TorchTrainer, *, keep_kv: bool = False) -> None:
    """Give the engine the trainer's weights."""
    version = trainer.publish()
    store: Any = trainer._store  # pyright: ignore[reportPrivateUsage] its own in-memory store
    engine.update(version, store.fetch(version), keep_kv=keep_kv)


def prompt_of(session: int, *, length: int) -> tuple[int, ...]:
    """Return random tokens; two sessions of three share a beginning."""
    start = np.random.default_rng(session // 3).integers(1, VOCABULARY, 24)
    rest = np.random.default_rng(100 + session).integers(1, VOCABULARY, length)
    return (*map(int, start), *map(int, rest))


def play(
    engine: TorchEngine, *, sessions: Sequence[int], sampling: Sampling = PLAIN, turns: int = 2
) -> list[Trajectory]:
    """Play conversations of a few turns, all at once, of 34 to 145 tokens."""
    done: dict[int, list[Turn]] = {session: [] for session in sessions}
    history = {each: prompt_of(each, length=10 + 17 * (each % 6)) for each in sessions}
    added = dict(history)
    for turn in range(turns):
        for session in sessions:
            engine.add(
                Request(
                    session=TrajectoryId(session),
                    turn=turn,
                    domain="matrix",
                    tokens=history[session],
                    sampling=sampling,
                    stop=(0,),
                    seed=1000 * session + turn,
                )
            )
        while engine.busy:
            for completion in engine.step():
                session = int(completion.session)
                done[session].append(
                    Turn(
                        prompt_tokens=added[session],
                        tokens=completion.tokens,
                        logprobs=completion.logprobs,
                        versions=completion.versions,
                        observation="",
                        action="",
                        reward=0.0,
                    )
                )
                added[session] = prompt_of(session + 50 * turn, length=4)[-4:]
                history[session] += completion.tokens + added[session]
    for session in sessions:
        engine.forget(TrajectoryId(session))
    return [trajectory_of(session, turns) for session, turns in done.items()]


def trajectory_of(number: int, turns: Sequence[Turn]) -> Trajectory:
    """Return turns as a trajectory; every second one has succeeded."""
    return token_trajectory(
        id=TrajectoryId(number),
        group=GroupId(0),
        task=Task(id=0, env="matrix", domain="matrix", seed=0),
        turns=tuple(turns),
        stop="terminated",
        success=number % 2 == 0,
        reward=float(number % 2 == 0) - 0.5,
    )


def batch_of(played: Sequence[Trajectory], *, temperature: float = 1.0) -> Mapping[str, Array]:
    """Return trajectories as the trainer takes them."""
    return encode([played], temperature=temperature)


def judge_of(model: Path) -> Any:
    """Return transformers' own model in float64."""
    return AutoModelForCausalLM.from_pretrained(model, dtype=torch.float64).eval()


@torch.no_grad()
def farthest(played: Sequence[Trajectory], model: Any) -> float:
    """Return the largest difference between recorded log-probs and a model's own."""
    largest = 0.0
    for trajectory in played:
        tokens: list[int] = []
        places: list[int] = []
        recorded: list[float] = []
        for turn in trajectory.turns:
            tokens += turn.prompt_tokens
            places += range(len(tokens), len(tokens) + len(turn.tokens))
            recorded += turn.logprobs
            tokens += turn.tokens
        rows = model(torch.tensor([tokens]), use_cache=False).logits[0].log_softmax(-1)
        index = torch.tensor(places)
        own = rows[index - 1].gather(1, torch.tensor(tokens)[index].unsqueeze(1)).view(-1)
        apart = (own - torch.tensor(recorded, dtype=torch.float64)).abs()
        largest = max(largest, float(apart.max()))
    return largest


def relabelled(trajectory: Trajectory, logprobs: Sequence[Sequence[float]]) -> Trajectory:
    """Return a trajectory with other recorded log-probs, turn by turn."""
    turns = [
        replace(turn, logprobs=tuple(row))
        for turn, row in zip(trajectory.turns, logprobs, strict=True)
    ]
    return trajectory_of(int(trajectory.id), turns)


def is_caught(trainer: TorchTrainer, played: Sequence[Trajectory]) -> bool:
    """Say whether the guard stops a step on what was played."""
    with suppress(GuardError):
        trainer.step(batch_of(played))
        return False
    return True


def play_batches(model: Path, *, count: int) -> list[Mapping[str, Array]]:
    """Return batches that an engine on a model's first weights sampled."""
    engine = TorchEngine.open(model, options=ENGINE, version=Version(0), threads=1)
    return [
        batch_of(play(engine, sessions=range(6 * number, 6 * number + 6)))
        for number in range(count)
    ]
