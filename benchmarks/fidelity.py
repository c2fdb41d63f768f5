"""Token in, token out: what the engine sampled against what the trainer computes.

A thousand multi-turn episodes are played by the live environment managers with the torch engine;
the trainer's own packed forward then recomputes the log-prob of every sampled token. The token ids
of each request as the engine received them are kept and compared with what the trainer is given.

`--full` plays 5,000 episodes, `--quick` 100.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

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
from rollart.types import Completion, EngineId, Request, Trajectory, TrajectoryId, Version

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
    episodes = {"quick": 100, "plain": 1_000, "full": 5_000}[effort]
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
