"""Our side of the comparison: the same game, checkpoint and step shape on the live runtime.

`measure_rollart` is the only thing the benchmark calls; as a script it prints its result as one
JSON line, like the other sides.
"""

import argparse
import itertools
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.live_runs.timed import Timed, run_live
from benchmarks.trl_sides import game
from rollart.config import load_config
from rollart.events import Launch, StepFinished, Train, TrajectoryFinished
from rollart.types import TrajectoryInfo

CONFIG = Path(__file__).with_name("rollart_side.toml")


def measure_rollart(
    latency_s: float, *, steps: int, checkpoint: Path, seed: int = 0, threads: int = 1
) -> dict[str, object]:
    """Train `steps` optimizer steps and return what the TRL sides report.

    `latency_s` is slept in every `env.step`, never in `reset`; `threads` are the engine's.
    """
    overrides = [
        f"run.steps={steps}",
        f"run.seed={seed}",
        f"engine.torch.threads={threads}",
        f"model.path={str(checkpoint)!r}",
        f"training.learning_rate={game.LEARNING_RATE}",
        f"training.max_grad_norm={game.MAX_GRAD_NORM}",
        f"batching.groups_per_step={game.GROUPS}",
        f"batching.group_size={game.GROUP_SIZE}",
        f"sampling.max_tokens={game.MAX_TOKENS}",
        f"tasks.guess.max_turns={game.MAX_TURNS}",
    ]
    if latency_s:
        overrides += [
            'tasks.guess.env="benchmarks.trl_sides.slow_guess:SlowGuess"',
            f"tasks.guess.options={{latency_s={latency_s}}}",
            "run.environments=96",
            "staleness.alpha=2",
        ]
    config = load_config(CONFIG, overrides)
    return {
        **_report(run_live(config)),
        "slots": config.run.environments,
        "alpha": config.staleness.alpha,
        "engine_threads": threads,
    }


def _report(timed: Timed) -> dict[str, object]:
    """Read the same figures off our log as the other sides note while they run."""
    ends, began_s = [], None
    infos: dict[int, TrajectoryInfo] = {}
    batches: list[list[list[TrajectoryInfo]]] = []
    for record in timed.records:
        if isinstance(record.event, TrajectoryFinished):
            infos[record.event.info.id] = record.event.info
        elif isinstance(record.event, StepFinished):
            ends.append(record.time_s)
        for command in record.commands:
            if isinstance(command, Launch) and began_s is None:
                began_s = record.time_s
            elif isinstance(command, Train):
                batches.append([[infos[id_] for id_ in group] for group in command.groups])
    assert began_s is not None
    durations_s = [after - before for before, after in itertools.pairwise([began_s, *ends])]
    counted_s = game.counted(durations_s)
    steps = [[info for group in batch for info in group] for batch in batches]
    trained = [info for step in steps for info in step]
    return {
        "steps": len(ends),
        "trained_per_s": game.TRAJECTORIES_PER_STEP / statistics.fmean(counted_s),
        "step_s": statistics.median(counted_s),
        "calls_per_trajectory": sum(info.turns for info in trained) / len(trained),
        "sampled_tokens_per_trajectory": sum(info.cost for info in trained) / len(trained),
        "zero_advantage": statistics.fmean(map(_zero_advantage, game.counted(batches))),
        "reward": [round(statistics.fmean(i.reward or 0.0 for i in step), 4) for step in steps],
        "wall_s": [round(end - began_s, 4) for end in ends],
    }


def _zero_advantage(batch: Sequence[Sequence[TrajectoryInfo]]) -> float:
    """Return the share of a batch whose groups earned all the same: our trainer skips them."""
    equal = sum(len(group) for group in batch if len({info.reward for info in group}) == 1)
    return equal / sum(map(len, batch))


def main() -> None:
    """Measure and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--latency-s", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    result = measure_rollart(
        arguments.latency_s,
        steps=arguments.steps,
        checkpoint=arguments.checkpoint,
        seed=arguments.seed,
        threads=arguments.threads,
    )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
