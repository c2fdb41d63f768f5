"""Our side of the comparison: the same game, checkpoint and step shape on the live runtime.

`measure_rollart` is the only thing the benchmark calls; as a script it prints its result as one
JSON line, like the other sides.
"""

import argparse
import json
from pathlib import Path


def measure_rollart(
    latency_s: float, *, steps: int, checkpoint: Path, seed: int = 0
) -> dict[str, object]:
    """Train `steps` optimizer steps and return what the TRL sides report.

    Keys: `steps` (int); `trained_per_s` (float: 32 over the median time between optimizer steps
    after the first `game.WARM_UP_STEPS`, at most a quarter of all); `step_s` (float); over trained
    trajectories `calls_per_trajectory`, `prompt_tokens_per_trajectory` (the opening),
    `sampled_tokens_per_trajectory` and `completion_tokens_per_trajectory` (sampled and observed,
    without the opening); `reward` (mean reward of each step's batch); `wall_s` (seconds from the
    first launch to the end of each step, as long as `reward`).
    `latency_s` is slept in every `env.step`, never in `reset`.
    """
    raise NotImplementedError("the live runtime is not wired to this benchmark")


def main() -> None:
    """Measure and print one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--latency-s", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    result = measure_rollart(
        arguments.latency_s,
        steps=arguments.steps,
        checkpoint=arguments.checkpoint,
        seed=arguments.seed,
    )
    print(json.dumps(result))


if __name__ == "__main__":
    main()
