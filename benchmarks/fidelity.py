"""Token in, token out: what the engine sampled against what the trainer computes.

Episodes: a thousand multi-turn episodes are played by the live environment managers with the torch
engine; the trainer's own packed forward then recomputes the log-prob of every sampled token. The
token ids of each request as the engine received them are kept and compared with what the trainer is
given (`retokenised`).

Models: a matrix of tiny models (`cases`), each served with engine, trainer and transformers in
float64 at most 1e-4 nats apart (`served`), or refused with a message (`refused`); `silent` counts
what is neither. Then each fault that a check prevents, with that check turned off: the guard alone
must stop the step (`guard_caught` of `guard_cases`).

Steps: twenty steps at a learning rate of 1e-6 in bfloat16 and in float32; the cosine of what they
add to the weights (`bfloat16_cosine`).

`--full` plays 5,000 episodes, `--quick` 100 and a tenth of the plain models.
"""

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from transformers.utils import logging as transformers_logging

from benchmarks.fidelity_parts.faults import faults
from benchmarks.fidelity_parts.matrix import Case, cases
from benchmarks.fidelity_parts.play import Verdict, judge, open_trainer, play_batches
from benchmarks.live_runs.timed import ROOT, say, warm_model
from rollart.cli.bench import Effort
from rollart.clock import SystemClock
from rollart.cluster.deployment import open_engines
from rollart.config import Config, load_config
from rollart.inference.driver import EngineDriver
from rollart.pipelines.task_setups import make_setups, task_streams
from rollart.ports import OnCut
from rollart.rollout.barrier import NoBarrier
from rollart.rollout.engine_client import EngineClient
from rollart.rollout.env_manager import Access
from rollart.rollout.evaluation import Evaluator
from rollart.training.batch import Batch, decode, encode
from rollart.training.losses import Columns, logprobs_of
from rollart.training.model import load_model
from rollart.training.packing import lay_out
from rollart.training.trainer import TorchTrainer
from rollart.types import Completion, EngineId, Request, Trajectory, TrajectoryId, Version
from rollart.weights.store import MemoryStore

NAME = "fidelity"


class Listening:
    """A Generator that keeps the last tokens each session sent and got."""

    def __init__(self, proxy: EngineDriver) -> None:
        self._proxy = proxy
        self.heard: dict[TrajectoryId, tuple[int, ...]] = {}

    async def generate(self, request: Request, on_cut: OnCut | None = None) -> Completion:
        """Forward a request and keep what went through."""
        completion = await self._proxy.generate(request, on_cut)
        self.heard[request.session] = request.tokens + completion.tokens
        return completion

    def forget(self, session: TrajectoryId) -> None:
        """Forward."""
        self._proxy.forget(session)


async def _play(
    config: Config, model: Path, episodes: int
) -> tuple[tuple[Trajectory, ...], Mapping[TrajectoryId, tuple[int, ...]]]:
    async with open_engines(config, model=model, version=Version(0), store=None) as engines:
        listening = {id_: Listening(proxy) for id_, proxy in engines.proxies.items()}
        generators: Mapping[EngineId, Listening] = listening
        evaluator = Evaluator(
            setups=make_setups(config, config.sampling),
            access=Access(
                renderer=engines.renderer,
                engines=EngineClient(
                    engines.router(config.routing, affinity=False),
                    generators=generators,  # type: ignore[arg-type]
                    now=SystemClock().now,
                ),
                barrier=NoBarrier(),
                is_fresh=lambda _version: True,
            ),
            tasks=task_streams(config)[1].task,
            slots=range(64),
            seed=1,
        )
        result = await evaluator.run(episodes)
        heard = {k: v for each in listening.values() for k, v in each.heard.items()}
        return result.trajectories, heard


def run(*, effort: Effort) -> dict[str, object]:
    torch.set_num_threads(1)
    transformers_logging.set_verbosity_error()  # of what odd configs make it warn
    transformers_logging.disable_progress_bar()
    verdicts = judge_all(is_quick=effort == "quick")
    caught = catch_faults()
    cosine = compare_steps()
    found = play_episodes({"quick": 100, "plain": 1_000, "full": 5_000}[effort])
    return (
        found
        | summarise(verdicts, caught, of_episodes=found["max_logprob_error"])
        | {"bfloat16_cosine": cosine}
    )


def summarise(
    verdicts: Sequence[Verdict], caught: Mapping[str, bool], *, of_episodes: object
) -> dict[str, object]:
    """Count what was served, refused and caught."""
    errors = [each.error for each in verdicts if not each.refusal]
    silent = [each.name for each in verdicts if each.is_silent]
    return {
        "max_logprob_error": max([cast("float", of_episodes), *errors]),
        "episode_logprob_error": of_episodes,
        "cases": len(verdicts),
        "served": len(errors) - len(silent),
        "refused": len(verdicts) - len(errors),
        "silent": len(silent),
        "silent_cases": silent,
        "guard_alarms": sum(each.is_alarmed for each in verdicts),
        "guard_cases": len(caught),
        "guard_caught": sum(caught.values()),
        "guard_missed": [name for name, is_caught in caught.items() if not is_caught],
    }


def judge_all(*, is_quick: bool) -> list[Verdict]:
    """Serve every model of the matrix, or see it refused."""
    verdicts: list[Verdict] = []
    for case in cases(is_quick=is_quick):
        with tempfile.TemporaryDirectory() as directory:
            verdicts.append(judge(case, Path(directory)))
        if verdicts[-1].is_silent or verdicts[-1].is_alarmed:
            say(f"{case.name}: {verdicts[-1].error:.2g} nats; {verdicts[-1].refusal}")
    refused = sum(bool(each.refusal) for each in verdicts)
    say(f"{len(verdicts)} models, {refused} of them refused")
    return verdicts


def catch_faults() -> dict[str, bool]:
    """Return which faults the guard catches by itself."""
    caught: dict[str, bool] = {}
    for name, fault in faults().items():
        with tempfile.TemporaryDirectory() as directory:
            caught[name] = fault(Path(directory))
    say(f"the guard caught {sum(caught.values())} of {len(caught)} faults")
    return caught


def compare_steps(steps: int = 20) -> float:
    """Return the cosine of how far bfloat16 and float32 move the weights at a small rate."""
    moves: list[NDArray[np.float64]] = []
    with tempfile.TemporaryDirectory() as directory:
        model = Case(name="steps", family="qwen3").write(Path(directory))
        batches = play_batches(model, count=steps)
        for dtype in ("float32", "bfloat16"):
            trainer = open_trainer(model, dtype=dtype, learning_rate=1e-6)
            before = weights_of(trainer)
            for batch in batches:
                trainer.step(batch)
            moves.append(weights_of(trainer) - before)
            trainer.close()
    exact, rough = moves
    return float(exact @ rough / np.linalg.norm(exact) / np.linalg.norm(rough))


def weights_of(trainer: TorchTrainer) -> NDArray[np.float64]:
    """Return all weights of a trainer, one after another."""
    store = MemoryStore()
    trainer._store = store  # pyright: ignore[reportPrivateUsage] what it publishes is read here
    held = store.fetch(trainer.publish())
    return np.concatenate([np.asarray(held[name], np.float64).ravel() for name in sorted(held)])


def play_episodes(episodes: int) -> dict[str, object]:
    """Play whole episodes and recompute every log-prob."""
    model = warm_model()
    config = load_config(ROOT / "examples" / "quickstart.toml", [f"model.path={str(model)!r}"])
    trajectories, heard = asyncio.run(_play(config, model, episodes))
    assert len(trajectories) == episodes
    say(f"played {episodes} episodes, {sum(len(t.turns) for t in trajectories)} turns")
    batch = decode(encode([trajectories], temperature=config.sampling.temperature))
    trainer = load_model(str(model), dtype="float32", device="cpu")
    columns = Columns.of(batch, version=0, device="cpu")
    micros = lay_out(batch, list(range(episodes)), row_tokens=256, micro_batch_tokens=8192)
    with torch.no_grad():
        recomputed = logprobs_of(trainer, micros, columns).numpy()
    return report(trajectories, heard, batch, recomputed)


def report(
    trajectories: Sequence[Trajectory],
    heard: Mapping[TrajectoryId, tuple[int, ...]],
    batch: Batch,
    recomputed: NDArray[np.float32],
) -> dict[str, object]:
    """Compare what the engine heard and sampled with what the trainer is given and computes."""
    difference = np.abs(recomputed - batch.logprobs)[batch.sampled]
    retokenised = 0
    for number, trajectory in enumerate(trajectories):
        given = batch.tokens[batch.offsets[number] : batch.offsets[number + 1]]
        seen = np.array(heard[trajectory.id])
        retokenised += abs(len(given) - len(seen))
        shortest = min(len(given), len(seen))
        retokenised += int((given[:shortest] != seen[:shortest]).sum())
    return {
        "max_logprob_error": float(difference.max()),
        "retokenised": retokenised,
        "trajectories": len(trajectories),
        "turns": sum(len(t.turns) for t in trajectories),
        "sampled_tokens": int(batch.sampled.sum()),
    }
