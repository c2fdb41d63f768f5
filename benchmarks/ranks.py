"""Ranks benchmark: how long an optimizer step takes with one trainer process and with two.

The same batch of 16 trajectories (100 to 400 tokens, a third of them sampled) on models of two
sizes. Sides: one process with one thread, one process with two threads, two ranks with one thread
each over gloo. Steps are interleaved; figures are medians in seconds, `two_ranks_over_one` is the
speed of two ranks relative to one process with one thread.

Plain: 5 steps of each side. `--full`: 15. `--quick`: 3, with the smaller model only.
"""

import asyncio
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from rollart.cli.bench import Effort
from rollart.cluster.local_host import EmbeddedHost, thread_env
from rollart.cluster.trainer_supervisor import TrainerClient
from rollart.models.tiny import make_tiny
from rollart.models.tokenizer import build_tokenizer
from rollart.training.distributed.ranks import RankGroup, RankPlan
from rollart.training.distributed.rendezvous import LOOPBACK

NAME = "ranks"
SIZES = ("1M", "5M")
TRAJECTORIES = 16
TOKENS = 256


def make_batch() -> dict[str, Any]:
    draw = np.random.default_rng(0)
    lengths = draw.integers(100, 400, TRAJECTORIES)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    sampled = draw.random(offsets[-1]) < 1 / 3
    sampled[offsets[:-1]] = False
    return {
        "tokens": draw.integers(0, TOKENS, offsets[-1]).astype(np.int32),
        "sampled": sampled,
        "logprobs": np.where(sampled, -5.0, 0.0).astype(np.float32),
        "versions": np.where(sampled, 0, -1).astype(np.int32),
        "turns": np.repeat(np.arange(TRAJECTORIES), lengths).astype(np.int32),
        "offsets": offsets.astype(np.int64),
        "turn_rewards": np.zeros(TRAJECTORIES),
        "turn_states": np.zeros(TRAJECTORIES, dtype=np.int64),
        "turn_offsets": np.arange(TRAJECTORIES + 1, dtype=np.int64),
        "groups": np.repeat(np.arange(TRAJECTORIES // 8), 8).astype(np.int64),
        "ids": np.arange(TRAJECTORIES, dtype=np.int64),
        "rewards": draw.random(TRAJECTORIES),
        "successes": np.zeros(TRAJECTORIES, np.bool_),
        "cuts": np.zeros(TRAJECTORIES, np.bool_),
        "temperatures": np.ones(TRAJECTORIES),
        "top_ps": np.ones(TRAJECTORIES),
        "top_ks": np.zeros(TRAJECTORIES, np.int64),
        "min_ps": np.zeros(TRAJECTORIES),
    }


async def open_side(model: Path, *, ranks: int, threads: int) -> tuple[EmbeddedHost, TrainerClient]:
    host = EmbeddedHost(env=thread_env(threads))
    plan = RankPlan(
        options={"model": str(model), "options": {"ranks": ranks, "threads": threads}},
        addresses=[LOOPBACK] * ranks,
    )
    return host, TrainerClient(await RankGroup.start(host, plan))


async def measure(model: Path, *, rounds: int) -> dict[str, float]:
    sides = {
        "one": await open_side(model, ranks=1, threads=1),
        "one_with_two_threads": await open_side(model, ranks=1, threads=2),
        "two_ranks": await open_side(model, ranks=2, threads=1),
    }
    batch = make_batch()
    times: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, (_, trainer) in sides.items():
            report = await trainer.step(batch)
            if number:  # the first step of each is for warming up
                times[name].append(report.metrics["step_s"])
    for host, trainer in sides.values():
        await trainer.close()
        await host.close()
    return {name: round(median(each), 3) for name, each in times.items()}


def run(*, effort: Effort) -> dict[str, object]:
    rounds = {"quick": 3, "plain": 5, "full": 15}[effort]
    seconds: dict[str, dict[str, float]] = {}
    tokenizer = build_tokenizer([__doc__ or NAME])
    for size in SIZES[:1] if effort == "quick" else SIZES:
        with tempfile.TemporaryDirectory() as directory:
            make_tiny(size, seed=0, tokenizer=tokenizer).save_pretrained(directory)
            seconds[size] = asyncio.run(measure(Path(directory), rounds=rounds))
        sys.stderr.write(f"{size}: {seconds[size]}\n")
    return {
        "step_s": seconds,
        "two_ranks_over_one": {
            size: round(each["one"] / each["two_ranks"], 3) for size, each in seconds.items()
        },
    }
