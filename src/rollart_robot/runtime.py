"""A robot policy as the policy of a run: `[policy] type = "robot"`.

`RobotPolicy` is the config section: everything of `GenerativeOptions`, where the demonstrations
are, how imitation learns and how reinforcement learning explores. `RobotRuntime` is what the
pipelines of rollart ask of it. A model directory holds

    config.json          the policy's options and the sizes of states and actions
    model.safetensors    its weights and normalisers, averaged over training

and is written by imitation, read by play, evaluation and reinforcement learning.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from rollart.constraints import AtLeast, Finite, MoreThan
from rollart.errors import ConfigError, UserError
from rollart.types import ArraySteps, Json, Trajectory
from rollart_robot.options import GenerativeOptions, ImitationOptions

if TYPE_CHECKING:
    from torch import Tensor

    from rollart_robot.learner import RobotLearner
    from rollart_robot.policy import GenerativePolicy

CONFIG, WEIGHTS = "config.json", "model.safetensors"
ONE_RANK = "a robot policy is small: train it with 1 rank"
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RobotPolicy(GenerativeOptions):
    """The section [policy] of a robot policy.

    Example:
        >>> RobotPolicy(objective="mp1", demonstrations="demos/reach.npz").resolved().derivative
        'jvp'

    """

    runtime: ClassVar[str] = "rollart_robot.runtime:RobotRuntime"

    demonstrations: str = ""
    """The file imitation learns from: .npz or HDF5 (`rollart robot demos` writes one). With
    self_imitation, reinforcement learning imitates them further, if they are named."""
    imitation: ImitationOptions = field(default_factory=ImitationOptions)
    """How imitation learns; its steps are run.steps."""
    spread: Annotated[float, Finite(), MoreThan(0)] = 0.1
    """Reinforcement learning: standard deviation of actions around the policy's own, in
    normalised units."""
    anchor: Annotated[float, Finite(), AtLeast(0)] = 0.05
    """Reinforcement learning: weight of the squared distance from the imitation policy's action
    at the same observation and noise."""
    self_imitation: Annotated[int, AtLeast(0)] = 0
    """Reinforcement learning: updates with the imitation objective on the latest successful
    attempts and the demonstrations, after those of the algorithm; 0: none."""
    self_imitation_rate: Annotated[float, Finite(), MoreThan(0)] = 2e-4
    """Learning rate of these updates."""


class RobotRuntime:
    """What a run asks of a robot policy.

    Example:
        >>> RobotRuntime(config).prepare(print)
        PosixPath('runs/reach-imitation/checkpoints/step-003000')

    """

    trainer: ClassVar[str] = "rollart_robot.trainer:RobotTrainer"
    unit: ClassVar[str] = "actions"

    def __init__(self, config: Any) -> None:
        self._config = config

    def check_files(self) -> None:
        """Refuse what no run can do, and demonstrations or a model that are not there."""
        training = self._config.training
        for key, value, can, fix in (
            ("ranks", training.ranks, 1, ONE_RANK),
            ("device", training.device, "cpu", 'a robot policy trains on the processor: use "cpu"'),
            ("dtype", training.dtype, "float32", 'a robot policy is small: use "float32"'),
            ("lora.rank", training.lora.rank, 0, "a robot policy has no adapters: use 0"),
        ):
            if value != can:
                raise ConfigError(f"training.{key}", value, fix)
        if self._config.engine.name == "torch":
            fix = 'engines sample nothing for a robot policy: use "scripted"'
            raise ConfigError("engine.name", "torch", fix)
        _check_network(self._config.policy)
        if self._config.run.pipeline == "imitation":
            _demonstrations_of(self._config)
        else:
            find_model(self._config.model.path)
            if self._config.policy.demonstrations:
                _demonstrations_of(self._config)

    def prepare(self, say: Say) -> Path:
        """Return the newest checkpoint of the run of imitation that model.path names."""
        model = find_model(self._config.model.path)
        say(f"policy: {model}")
        return model

    def find(self, checkpoint: Path, notes: Mapping[str, Json], say: Say) -> Path:
        """Return the model that a resumed run started from: what the anchor is measured from."""
        del checkpoint, say
        start = notes.get("start")
        return Path(start) if isinstance(start, str) else find_model(self._config.model.path)

    def check(self, model: Path) -> None:
        """Refuse a directory that does not hold a policy that runs can train."""
        _check_network(load_policy(model).options)

    def trainer_options(self) -> dict[str, Json]:
        """Return how the trainer explores, stays close to imitation and imitates itself."""
        names = ("spread", "anchor", "self_imitation", "self_imitation_rate", "demonstrations")
        return {"policy": {name: getattr(self._config.policy, name) for name in names}}

    def renderer(self, model: Path) -> None:
        """Return None: the policy reads no text."""
        del model

    def encode(self, groups: Sequence[Sequence[Trajectory]]) -> Mapping[str, Any]:
        """Return trajectories as arrays with one row for each chunk of actions."""
        from rollart_robot.trainer import encode  # noqa: PLC0415 loads torch

        return encode(groups)

    def load(self, model: Path, weights: Mapping[str, Any] | None) -> "RobotActor":
        """Return the policy that plays in the process of an environment."""
        return RobotActor(load_policy(model, weights), spread=self._config.policy.spread)

    def learner(self) -> "RobotLearner":
        """Return what learns from the demonstrations."""
        from rollart_robot.learner import RobotLearner  # noqa: PLC0415 loads torch

        config = self._config
        return RobotLearner(
            config.policy,
            steps=config.run.steps,
            demonstrations=_demonstrations_of(config),
            threads=config.training.threads,
        )


@dataclass(frozen=True, slots=True, kw_only=False)
class RobotActor:
    """What a player acts with."""

    policy: "GenerativePolicy"
    spread: float = field(kw_only=True)


def find_model(path: str) -> Path:
    """Return the directory of a policy: itself, or the newest checkpoint of a run.

    Example:
        >>> find_model("runs/reach-imitation")
        PosixPath('runs/reach-imitation/checkpoints/step-003000')

    """
    place = Path(path).expanduser()
    if (place / WEIGHTS).is_file():
        return place
    newest = sorted((place / "checkpoints").glob("step-*/" + WEIGHTS))
    if newest:
        return newest[-1].parent
    fix = "name a run of imitation, or one of its checkpoints (run.pipeline = imitation makes one)"
    raise ConfigError("model.path", path, f"there is no robot policy: {fix}")


def write_config(directory: Path, policy: "GenerativePolicy") -> None:
    """Write the part of a model directory that is not tensors."""
    known = {each.name for each in fields(GenerativeOptions)}
    options = {key: value for key, value in asdict(policy.options).items() if key in known}
    sizes = {
        "state_size": policy.states.centre.numel(),
        "action_size": policy.actions.centre.numel(),
    }
    content = {"format": 1, "policy": options, **sizes}
    (directory / CONFIG).write_text(json.dumps(content, indent=1), encoding="utf-8")


def load_policy(model: Path, weights: Mapping[str, Any] | None = None) -> "GenerativePolicy":
    """Return the policy of a model directory, with these weights in place of its own."""
    import numpy as np  # noqa: PLC0415
    import torch  # noqa: PLC0415 a config is checked without it

    from rollart_robot.policy import GenerativePolicy  # noqa: PLC0415

    try:
        described = json.loads((model / CONFIG).read_text(encoding="utf-8"))
        options = GenerativeOptions(**described["policy"])
        sizes = {key: int(described[key]) for key in ("state_size", "action_size")}
        policy = GenerativePolicy(options, **sizes)
        if weights is None:
            state = read_tensors(model / WEIGHTS)
        else:
            state = {name: torch.from_numpy(np.array(value)) for name, value in weights.items()}
        policy.load_state_dict(state)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise UserError(f"{model}: not a robot policy of this version ({reason})") from error
    return policy.requires_grad_(False).eval()


def read_tensors(path: Path) -> "dict[str, Tensor]":
    """Return the tensors of a file; OSError or ValueError if it is missing or damaged."""
    from safetensors import SafetensorError  # noqa: PLC0415
    from safetensors.torch import load_file  # noqa: PLC0415 loads torch

    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"{path.name}: {error}") from error


def steps_of(trajectory: Trajectory) -> ArraySteps:
    """Return the payload of a trajectory that a robot policy played."""
    payload = trajectory.payload
    if not isinstance(payload, ArraySteps):
        fix = 'set tasks.NAME.player = "robot"'
        raise ConfigError("tasks.player", type(payload).__name__, fix)
    return payload


def _check_network(options: GenerativeOptions) -> None:
    if options.network == "points":
        fix = (
            'runs show policies the state alone: use "state", or train on point clouds from '
            "Python with rollart_robot.imitation"
        )
        raise ConfigError("policy.network", options.network, fix)


def _demonstrations_of(config: Any) -> Path:
    path = config.policy.demonstrations
    if not path:
        fix = "imitation needs a file of demonstrations: rollart robot demos TASK writes one"
        raise ConfigError("policy.demonstrations", path, fix)
    if not Path(path).is_file():
        fix = "there is no such file: rollart robot demos TASK --out FILE writes one"
        raise ConfigError("policy.demonstrations", path, fix)
    return Path(path)
