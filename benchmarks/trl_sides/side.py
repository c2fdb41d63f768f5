"""What both TRL sides share: arguments, the trainer's settings, and the record of a run.

Settings are the fastest found for a tiny model on a CPU: fp32, no gradient checkpointing, the
whole step as one micro-batch, fused AdamW, nothing logged, saved or shown.
"""

import argparse
import itertools
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
import transformers
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from benchmarks.trl_sides import game


@dataclass(slots=True)
class Record:
    """What a run did, step by step."""

    began_s: float = 0.0
    ended_s: list[float] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    """Processor time of this process at the start and after each step."""
    rewards: list[float] = field(default_factory=list)
    zero_advantage: list[float] = field(default_factory=list)
    """Share of each step's trajectories whose group earned all the same; TRL computes them too."""
    trajectories: int = 0
    totals: dict[str, int] = field(default_factory=dict)

    def rollout(self, *, trajectories: int, **counts: int) -> None:
        """Note one rollout of this process."""
        self.trajectories += trajectories
        for name, count in counts.items():
            self.totals[name] = self.totals.get(name, 0) + count

    def report(self) -> dict[str, object]:
        """Return the run as JSON values; rates are over the steps that count."""
        marks = [self.began_s, *self.ended_s]
        durations_s = [after - before for before, after in itertools.pairwise(marks)]
        counted_s = game.counted(durations_s)
        cpu_s = [after - before for before, after in itertools.pairwise(self.cpu_s)]
        per_trajectory = {
            f"{name}_per_trajectory": round(count / self.trajectories, 2)
            for name, count in self.totals.items()
        }
        return {
            "steps": len(self.ended_s),
            "trained_per_s": game.TRAJECTORIES_PER_STEP / statistics.fmean(counted_s),
            "step_s": statistics.median(counted_s),
            "step_cpu_s": statistics.median(game.counted(cpu_s)),
            "zero_advantage": statistics.fmean(game.counted(self.zero_advantage)),
            **per_trajectory,
            "reward": [round(reward, 4) for reward in self.rewards],
            "wall_s": [round(end - self.began_s, 4) for end in self.ended_s],
        }


class StepTimes(TrainerCallback):
    """Notes when training began and when each optimizer step ended."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.trainer: GRPOTrainer | None = None

    def on_train_begin(self, *_: object, **__: object) -> None:
        """Note the start."""
        self.record.began_s = time.perf_counter()
        self.record.cpu_s.append(time.process_time())

    def on_step_end(self, *_: object, **__: object) -> None:
        """Note the end of a step."""
        self.record.ended_s.append(time.perf_counter())
        self.record.cpu_s.append(time.process_time())
        if self.trainer is not None:
            metrics = self.trainer._metrics["train"]
            self.record.rewards.append(metrics["reward"][-1])
            self.record.zero_advantage.append(metrics["frac_reward_zero_std"][-1])


def parse_arguments(description: str | None, *, rollouts: tuple[str, ...]) -> argparse.Namespace:
    """Read the command line of a side."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--latency-s", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rollout", choices=rollouts, default=rollouts[0])
    return parser.parse_args()


def settings(arguments: argparse.Namespace, *, processes: int, **options: object) -> GRPOConfig:
    """Return the trainer's settings."""
    return GRPOConfig(
        output_dir=str(arguments.checkpoint.parent / "trl"),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        per_device_train_batch_size=game.TRAJECTORIES_PER_STEP // processes,
        num_generations=game.GROUP_SIZE,
        max_steps=arguments.steps,
        learning_rate=game.LEARNING_RATE,
        lr_scheduler_type="constant",
        optim="adamw_torch_fused",
        weight_decay=0.0,
        max_grad_norm=game.MAX_GRAD_NORM,
        beta=0.0,
        temperature=1.0,
        seed=arguments.seed,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        dataloader_num_workers=0,
        dataloader_pin_memory=False,
        ddp_find_unused_parameters=False,
        **options,
    )


def train(
    arguments: argparse.Namespace,
    record: Record,
    *,
    rows: list[dict[str, object]],
    options: dict[str, object],
    prepare: Callable[[Record, GRPOTrainer], None] | None = None,
    **hooks: object,
) -> None:
    """Run the trainer and print its record as one JSON line."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(arguments.threads)
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    times = StepTimes(record)
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(arguments.checkpoint, dtype=torch.float32),
        args=settings(arguments, processes=processes, **options),
        processing_class=AutoTokenizer.from_pretrained(arguments.checkpoint),
        train_dataset=Dataset.from_list(rows),
        callbacks=[times],
        **hooks,
    )
    trainer.remove_callback(PrinterCallback)
    times.trainer = trainer
    if prepare is not None:
        prepare(record, trainer)
    trainer.train()
    if trainer.accelerator.is_main_process:
        setting = {"threads": arguments.threads, "processes": processes}
        print(json.dumps({**record.report(), **setting}), flush=True)
    # Processes that leave one another without a word abort now and then.
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.end_training()
