"""A policy without tokens: a line fitted by REINFORCE, in numpy, that acts in its environment.

The world shows a number and pays for an action close to twice that number. Everything a run needs
of it is here, as it would be in a package of its own.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from safetensors.numpy import load_file, save_file

from rollart.ports import AttemptContext
from rollart.training.export import open_store
from rollart.types import ArraySteps, Played, StepReport, Trajectory, Version

STEPS = 3


class Doubling:
    """Shows a number; the best action is twice that."""

    arrays = True

    def __init__(self, *, broken: bool = False, pause_s: float = 0.0) -> None:
        self._broken, self._pause_s = broken, pause_s

    def reset(self, seed: int, task: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        self._draw = np.random.default_rng(seed)
        self._left = STEPS
        return self._show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        time.sleep(self._pause_s)
        miss = abs(float(action[0]) - 2 * float(self._shown[0]))
        self._left -= 1
        done = self._left == 0
        return self._show(), max(0.0, 1.0 - miss), done, False, {"success": miss < 0.5}

    def _show(self) -> Any:
        self._shown = self._draw.uniform(-1, 1, 1)
        return np.array([np.nan]) if self._broken else self._shown


@dataclass(frozen=True, kw_only=True)
class Line:
    """The options of a line: [policy] type = "toy_policy:Line"."""

    runtime: ClassVar[str] = "toy_policy:LineRuntime"
    slope: float = 0.0
    spread: float = 0.3


class LinePlayer:
    """Plays with the policy of this process."""

    async def play(self, attempt: AttemptContext) -> Played:
        observation, _ = await attempt.reset()
        resident = await attempt.policy()
        draw = np.random.default_rng(attempt.spec.seed)
        seen, acted, rewards, success = [], [], [], False
        is_over = False
        while not is_over:
            mean = resident.policy["slope"] * observation
            action = mean + resident.policy["spread"] * draw.standard_normal(1)
            attempt.note_action(resident.version, cost=1)
            outcome = await attempt.step(action)
            seen.append(observation)
            acted.append(action)
            rewards.append(outcome.reward)
            success, observation = bool(outcome.success), outcome.observation
            is_over = outcome.terminated or outcome.truncated
        steps = ArraySteps(
            observations={"x": np.array(seen)},
            actions=np.array(acted),
            logprobs=np.zeros(len(acted)),
            rewards=tuple(rewards),
            versions=(resident.version,) * len(acted),
        )
        return Played(payload=steps, stop="terminated", success=success, reward=sum(rewards))


class LineRuntime:
    """What a run asks of a line."""

    trainer: ClassVar[str] = "toy_policy:LineTrainer"
    unit: ClassVar[str] = "actions"

    def __init__(self, config: Any) -> None:
        self._config = config

    def check_files(self) -> None:
        pass

    def prepare(self, say: Callable[[str], None]) -> Path:
        directory = Path(self._config.model.path)
        directory.mkdir(parents=True, exist_ok=True)
        options = self._config.policy
        say(f"a line of slope {options.slope}")
        (directory / "config.json").write_text(json.dumps({"spread": options.spread}))
        save_file({"slope": np.array([options.slope])}, directory / "model.safetensors")
        return directory

    def find(self, checkpoint: Path, notes: Mapping[str, Any], say: Callable[[str], None]) -> Path:
        return Path(self._config.model.path)

    def check(self, model: Path) -> None:
        load_file(model / "model.safetensors")

    def trainer_options(self) -> dict[str, Any]:
        return {"spread": self._config.policy.spread}

    def renderer(self, model: Path) -> None:
        return None

    def encode(self, groups: Sequence[Sequence[Trajectory]]) -> dict[str, Any]:
        members = [member for group in groups for member in group]
        assert all(isinstance(each.payload, ArraySteps) for each in members)
        baseline = [np.mean([m.reward for m in group]) for group in groups for _ in group]
        return {
            "x": np.concatenate([each.payload.observations["x"] for each in members]),
            "actions": np.concatenate([each.payload.actions for each in members]),
            "advantages": np.repeat([m.reward for m in members] - np.array(baseline), STEPS),
        }

    def learner(self) -> "LineLearner":
        return LineLearner(self._config)

    def load(self, model: Path, weights: Mapping[str, Any] | None) -> dict[str, float]:
        held = load_file(model / "model.safetensors") if weights is None else weights
        spread = json.loads((model / "config.json").read_text())["spread"]
        return {"slope": float(held["slope"][0]), "spread": spread}


class LineTrainer:
    """Moves the slope along the gradient of the rewards."""

    def __init__(self, *, model: str, store: Any, options: Any, **rest: Any) -> None:
        del rest
        self._model = Path(model)
        self._store = open_store(store)
        self._rate = options["learning_rate"]
        self._version = 0
        self._slope = load_file(self._model / "model.safetensors")["slope"]

    def step(self, batch: Mapping[str, Any]) -> StepReport:
        x, actions = batch["x"][:, 0], batch["actions"][:, 0]
        gradient = np.mean(batch["advantages"] * (actions - self._slope[0] * x) * x)
        self._slope = self._slope + self._rate * gradient
        self._version += 1
        metrics = {"slope": float(self._slope[0]), "loss": 0.0}
        return StepReport(version=Version(self._version), metrics=metrics)

    def publish(self) -> Version:
        self._store.publish(Version(self._version), {"slope": self._slope})
        return Version(self._version)

    def save(self, directory: str) -> None:
        place = Path(directory)
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.json").write_text((self._model / "config.json").read_text())
        save_file({"slope": self._slope}, place / "model.safetensors")
        save_file({"none": np.zeros(1)}, place / "optimizer.safetensors")
        (place / "trainer.json").write_text(json.dumps({"version": self._version}))

    def load(self, directory: str) -> Version:
        place = Path(directory)
        self._slope = load_file(place / "model.safetensors")["slope"]
        self._version = json.loads((place / "trainer.json").read_text())["version"]
        return Version(self._version)

    def close(self) -> None:
        pass


class LineLearner:
    """Learns the slope from demonstrations drawn from a seed."""

    def __init__(self, config: Any) -> None:
        self._spread = config.policy.spread
        self._rate = config.training.learning_rate
        self._slope = config.policy.slope
        self._step = 0

    def step(self) -> dict[str, float]:
        x = np.random.default_rng(self._step).uniform(-1, 1, 16)
        miss = self._slope * x - 2 * x
        self._slope -= self._rate * float(np.mean(miss * x))
        self._step += 1
        return {"loss": float(np.mean(miss**2))}

    def save(self, directory: str) -> None:
        place = Path(directory)
        place.mkdir(parents=True, exist_ok=True)
        (place / "config.json").write_text(json.dumps({"spread": self._spread}))
        save_file({"slope": np.array([self._slope])}, place / "model.safetensors")
        save_file({"none": np.zeros(1)}, place / "optimizer.safetensors")
        (place / "trainer.json").write_text(json.dumps({"step": self._step}))

    def load(self, directory: str) -> int:
        place = Path(directory)
        self._slope = float(load_file(place / "model.safetensors")["slope"][0])
        self._step = json.loads((place / "trainer.json").read_text())["step"]
        return self._step

    def close(self) -> None:
        pass
