"""Dedicated reward workers against an elastic invoker of equal peak capacity, in whole live runs.

A budget of eight GPUs is split. Dedicated: four hold four reward workers all the time and four roll
out. Elastic: all eight roll out, and functions that come and go score, at most four instances of
four calls each, as many as the workers take. The runs are real (controller, engine, trainer
process, reward processes, event log), but two cores cannot stand for eight GPUs: a GPU is a budget
of four episodes that run at once, an episode's turns are waiting, and a judge's latency is waiting.

Two tasks, each with a judge; episodes of a wave end at about the same time, so scores come in
bursts. Both kinds run the same config with the same seed, alternating.

- `utilisation_dedicated`: time in which workers score, by the time they are there (the whole run)
- `utilisation_elastic`: time in which instances score, by the time they exist, cold starts included
- `rollout_speedup`: seconds from each batch's first launch to its training, dedicated / elastic
- `p99_s`: of scoring, from the call to its answer, waiting and cold starts included (elastic)
- `cold_starts`, `idle_after`: instances started, and left once those that were alive when the run
  ended had been idle for as long as they may be (elastic)

Plain: 2 rounds of 1 optimizer step a run. `--full`: 4 rounds of 2 steps. `--quick`: 1 round.
"""

import asyncio
import contextlib
import io
import json
import tempfile
import time
from collections.abc import Generator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.live_runs.timed import ROOT, say
from rollart.cli.bench import Effort
from rollart.config import Config, TaskOptions, load_config
from rollart.config.options import RewardPart
from rollart.events import Launch, RunStarted, Score, Train
from rollart.observe.log import Record, read_log
from rollart.observe.replay import replay
from rollart.pipelines.agentic import train
from rollart.pipelines.start_model import prepare_model
from rollart.rewards.invoke.pool import LocalInvoker

NAME = "reward"
GPUS, EPISODES_PER_GPU = 8, 4
WORKERS, CALLS_PER_WORKER = 4, 4
TURNS = 4
IDLE_S = 0.1
"""How long an elastic instance may be idle before it ends."""
_ENDING_S = 10.0
"""How much longer is waited until idle instances have ended."""
_PARTS = "benchmarks.live_runs.judged"


def _task(turn_s: float, judge_s: float) -> TaskOptions:
    reward = RewardPart(function=f"{_PARTS}:judge", options={"mean_s": judge_s})
    return TaskOptions(
        env=f"{_PARTS}:Errand",
        max_turns=TURNS,
        max_tokens=256,
        options={"turns": TURNS, "mean_s": turn_s, "deviation_s": turn_s / 40},
        rewards={"judge": reward},
    )


def _config(kind: str, steps: int, directory: str) -> Config:
    is_dedicated = kind == "dedicated"
    rollout = GPUS - WORKERS if is_dedicated else GPUS
    scaling = {
        "max_instances": WORKERS,
        "min_instances": WORKERS if is_dedicated else 0,
        "concurrency": CALLS_PER_WORKER,
        "idle_s": 3600.0 if is_dedicated else IDLE_S,
    }
    base = load_config(
        ROOT / "examples" / "quickstart.toml",
        [
            f"run.directory={directory!r}",
            "run.mode=sync_plus",
            f"run.steps={steps}",
            f"run.environments={rollout * EPISODES_PER_GPU}",
            "run.evaluate_episodes=0",
            "run.evaluate_every=0",
            "run.checkpoint_every=0",
            "run.samples=0",
            "model.path=tiny:0.2M",
            "model.warm_start=false",
            "batching.groups_per_step=8",
            "batching.group_size=4",
            *(f"rewards.scaling.{name}={value}" for name, value in scaling.items()),
        ],
    )
    # Built in the quickstart's world: the vocabulary is drawn from plays, and errands take long.
    model = replace(base.model, path=str(prepare_model(base, say)))
    return replace(base, model=model, tasks={"web": _task(6.5, 1.5), "code": _task(6.5, 2.1)})


@dataclass(frozen=True)
class Measured:
    """What one run's log and summary say."""

    records: tuple[Record, ...]
    rewards: dict[str, Any]
    proof: dict[str, Any]
    idle_after: int

    @property
    def rollout_s(self) -> float:
        """Seconds from the first launch of each batch to its training, in all."""
        total, began = 0.0, None
        for record in self.records:
            kinds = {type(command) for command in record.commands}
            if Train in kinds and began is not None:
                total, began = total + record.time_s - began, None
            if Launch in kinds and began is None:
                began = record.time_s
        return total

    @property
    def utilisation_dedicated(self) -> float:
        """Busy by whole time: the invoker counts from its first call, workers are there before."""
        start = next(r.time_s for r in self.records if isinstance(r.event, RunStarted))
        first = next(r.time_s for r in self.records for c in r.commands if isinstance(c, Score))
        end = self.records[-1].time_s
        return self.rewards["utilisation"] * (end - first) / (end - start)


@contextlib.contextmanager
def _instances_after(*, wait_s: float) -> Generator[list[int]]:
    """Let an invoker that is closed wait until its instances have ended; give how many are left."""
    left: list[int] = []
    close = LocalInvoker.close

    async def close_later(self: LocalInvoker) -> None:
        end_s = time.monotonic() + wait_s
        while (count := int(self.stats()["instances"])) and time.monotonic() < end_s:
            await asyncio.sleep(IDLE_S / 4)
        left.append(count)
        await close(self)

    LocalInvoker.close = close_later
    try:
        yield left
    finally:
        LocalInvoker.close = close


def _run(kind: str, steps: int) -> Measured:
    wait_s = IDLE_S + _ENDING_S if kind == "elastic" else 0.0
    with tempfile.TemporaryDirectory(prefix="rollart-bench-") as parent:
        directory = Path(parent) / "run"
        with contextlib.redirect_stderr(io.StringIO()), _instances_after(wait_s=wait_s) as left:
            assert train(_config(kind, steps, str(directory))) == 0
        summary = json.loads((directory / "summary.json").read_text())
        records = read_log(directory / "events.jsonl")[0].records
        proof = replay(directory)
    assert (proof["lost"], proof["trained_twice"], proof["same_commands"]) == (0, 0, True)
    return Measured(records=records, rewards=summary["rewards"], proof=proof, idle_after=left[-1])


def run(*, effort: Effort) -> dict[str, object]:
    rounds, steps = {"quick": (1, 1), "plain": (2, 1), "full": (4, 2)}[effort]
    pairs: list[tuple[Measured, Measured]] = []
    for number in range(rounds):
        dedicated, elastic = _run("dedicated", steps), _run("elastic", steps)
        pairs.append((dedicated, elastic))
        say(
            f"round {number + 1}: rollout {dedicated.rollout_s:.1f} and {elastic.rollout_s:.1f} s, "
            f"utilisation {dedicated.utilisation_dedicated:.3f} and "
            f"{elastic.rewards['utilisation']:.3f}, p99 {elastic.rewards['latency_p99_s']:.2f} s, "
            f"{elastic.rewards['cold_starts']:.0f} cold starts of "
            f"{elastic.rewards['cold_start_s']:.2f} s"
        )
    elastics = [elastic.rewards for _, elastic in pairs]
    return {
        "utilisation_dedicated": round(median(d.utilisation_dedicated for d, _ in pairs), 4),
        "utilisation_elastic": round(median(each["utilisation"] for each in elastics), 4),
        "rollout_speedup": round(median(d.rollout_s / e.rollout_s for d, e in pairs), 3),
        "p99_s": round(median(each["latency_p99_s"] for each in elastics), 3),
        "cold_starts": median(each["cold_starts"] for each in elastics),
        "idle_after": max(elastic.idle_after for _, elastic in pairs),
        "rollout_s": [[round(d.rollout_s, 1), round(e.rollout_s, 1)] for d, e in pairs],
        "stands_for": "a GPU is a budget of episodes at once; turns and judges are waiting",
    }
