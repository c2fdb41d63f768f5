"""Imitation as the learner of a run: `ImitationTrainer` with checkpoints.

A checkpoint is a model directory of the average, which plays, beside what a resume needs: the
weights being trained, the optimizer's moments and the generator, as safetensors.
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from rollart.errors import StorageError, UserError
from rollart_robot.demonstrations import load_demonstrations
from rollart_robot.imitation import ImitationTrainer
from rollart_robot.runtime import WEIGHTS, RobotPolicy, read_tensors, write_config

_REST, _RECORD = "optimizer.safetensors", "trainer.json"


class RobotLearner:
    """Learns a robot policy from a file of demonstrations.

    Example:
        >>> learner = RobotLearner(RobotPolicy(), steps=3000, demonstrations=Path("reach.npz"))
        >>> learner.step()["loss"]
        1.24

    """

    def __init__(
        self, policy: RobotPolicy, *, steps: int, demonstrations: Path, threads: int = 1
    ) -> None:
        torch.set_num_threads(threads)
        episodes = load_demonstrations(demonstrations, horizon=policy.horizon, warn=_warn).episodes
        warmup = min(policy.imitation.warmup_steps, steps - 1)
        options = replace(policy.imitation, steps=steps, warmup_steps=warmup)
        self._trainer = ImitationTrainer(policy, options, episodes)

    def step(self) -> dict[str, float]:
        """Make one optimizer step."""
        return self._trainer.step()

    def save(self, directory: str) -> None:
        """Write a checkpoint."""
        place = Path(directory)
        state = self._trainer.state()
        rest = {f"policy.{name}": value for name, value in state["policy"].items()}
        for index, moments in state["optimizer"]["state"].items():
            rest |= {f"adam.{index}.{name}": value for name, value in moments.items()}
        rest["generator"] = state["generator"]
        record = {"steps_done": state["steps_done"]}
        try:
            place.mkdir(parents=True, exist_ok=True)
            write_config(place, self._trainer.average)
            save_file(_plain(state["average"]), place / WEIGHTS)
            save_file(_plain(rest), place / _REST)
            (place / _RECORD).write_text(json.dumps(record), encoding="utf-8")
        except (OSError, SafetensorError) as error:
            raise StorageError(f"cannot write the checkpoint {place}: {error}") from error

    def load(self, directory: str) -> int:
        """Restore what `save` wrote; return the steps made."""
        place = Path(directory)
        try:
            rest, average = read_tensors(place / _REST), read_tensors(place / WEIGHTS)
            record = json.loads((place / _RECORD).read_text(encoding="utf-8"))
            self._trainer.load_state(self._read(rest, average, int(record["steps_done"])))
        except (OSError, ValueError, KeyError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(
                f"{place}: not a checkpoint of this imitation ({reason}); resume with the policy "
                "options and demonstrations that the run started with"
            ) from error
        return self._trainer.steps_done

    def close(self) -> None:
        """Do nothing: memory is freed with the learner."""

    def _read(
        self, rest: dict[str, Tensor], average: dict[str, Tensor], steps_done: int
    ) -> dict[str, Any]:
        state = self._trainer.state()
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in rest.items():
            kind, _, place = name.partition(".")
            if kind == "adam":
                index, _, which = place.partition(".")
                moments.setdefault(int(index), {})[which] = value
        state["optimizer"]["state"] = moments
        state["policy"] = {
            name.removeprefix("policy."): value
            for name, value in rest.items()
            if name.startswith("policy.")
        }
        return {
            **state,
            "average": average,
            "generator": rest["generator"],
            "steps_done": steps_done,
        }


def _plain(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone().contiguous() for name, value in tensors.items()}


def _warn(text: str) -> None:
    sys.stderr.write(f"warning: {text}\n")
