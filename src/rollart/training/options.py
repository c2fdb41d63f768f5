"""The options of the trainer: the config section `training`, and an algorithm as plain values.

A config is checked without loading torch. What a trainer is made
with crosses to its process as JSON (`trainer_arguments`) and is read there (`TrainingOptions.read`,
`read_algorithm`): an algorithm travels as its type and its fields.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Annotated, Any, Literal

from pydantic import TypeAdapter

from rollart.constraints import AtLeast, Between, Finite, Fixed, MoreThan, NonEmpty, check_fields
from rollart.errors import ConfigError
from rollart.models.files import is_checked
from rollart.plugins import add_paths, describe_unread, find, name_of
from rollart.training_ports import Algorithm
from rollart.types import Json

DEFAULT_ALGORITHM = "grpo"
_PATHS = "import_paths"
DType = Literal["float32", "bfloat16"]
Schedule = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoraOptions:
    """Low-rank adapters: what is trained instead of the weights themselves.

    Example:
        >>> LoraOptions(rank=16, targets=("q_proj", "v_proj"))

    """

    rank: Annotated[int, AtLeast(0, "0: no adapter")] = 0
    """Inner dimension of the adapters; 0 trains all weights and has none."""
    alpha: Annotated[float, Finite(), MoreThan(0)] = 16.0
    """An adapter's product is scaled by alpha / rank."""
    targets: Annotated[tuple[str, ...], NonEmpty("name at least one linear layer")] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )
    """Names of the linear layers that get an adapter."""
    dropout: Annotated[float, Between(0, 1, without="high")] = 0.0
    """Share of an adapter's inputs dropped in training; above 0 the loss is no longer exact."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "targets", tuple(self.targets))
        check_fields(self, "training.lora")

    def check_tied_head(self, head: str) -> None:
        """Refuse an adapter on an output layer that shares the embedding's weights.

        Merged, the two would differ, while the config of engines and exports says they are one.

        Example:
            >>> LoraOptions(rank=8).check_tied_head("lm_head")

        """
        is_target = any(f".{head}".endswith(f".{name}") for name in self.targets)
        if self.rank and is_target and is_checked("adapters"):
            fix = f"{head} shares its weights with the embedding (tie_word_embeddings), so its "
            fix += "adapter could be neither served nor exported: leave it out, or untie the model"
            raise ConfigError("training.lora.targets", list(self.targets), fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """How a batch becomes an optimizer step.

    Example:
        >>> TrainingOptions(learning_rate=3e-4, warmup_steps=5, minibatches=2)

    """

    learning_rate: Annotated[float, Finite(), MoreThan(0)] = 1e-4
    """AdamW's step size after the warm-up."""
    warmup_steps: Annotated[int, AtLeast(0)] = 0
    """Steps over which the learning rate rises linearly from near 0."""
    lr_scheduler_type: Schedule = "constant"
    """How the learning rate falls after the warm-up."""
    min_lr_ratio: Annotated[float, Between(0, 1)] = 0.0
    """Share of `learning_rate` that it falls to."""
    decay_steps: Annotated[int, AtLeast(0, "0: until run.steps")] = 0
    """The step, counted from the first, by which it has fallen; 0: the last of the run."""
    weight_decay: Annotated[float, Finite(), AtLeast(0)] = 0.0
    """AdamW's decoupled decay, on matrices only (not on norms and biases)."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay rates of the first and second moment."""
    eps: Annotated[float, Finite(), MoreThan(0), Fixed("Adam's usual value")] = 1e-8
    """AdamW's denominator floor."""
    max_grad_norm: Annotated[float, Finite(), AtLeast(0)] = 1.0
    """Gradients are scaled down to this global norm; 0 leaves them alone."""
    epochs: Annotated[int, AtLeast(1)] = 1
    """Passes over the batch per step."""
    minibatches: Annotated[int, AtLeast(1)] = 1
    """Optimizer updates per pass, each on an equal share of the trajectories."""
    skip_zero_advantage: Annotated[bool, Fixed("the weights are the same, only sooner")] = True
    """Do not compute trajectories that cannot move the weights (advantage 0, no KL, no entropy)."""
    micro_batch_tokens: Annotated[int, AtLeast(1)] = 2048
    """Most tokens, padding included, computed at once; small ones stay in the CPU cache."""
    row_tokens: Annotated[int, AtLeast(0), Fixed("the shortest rows that fit all")] = 0
    """Length of the rows sequences are packed into; 0 is the longest sequence of the batch."""
    threads: Annotated[int, AtLeast(1)] = 1
    """CPU threads of the trainer; one per busy role is best when cores are few."""
    dtype: DType = "float32"
    """Number format of computing, bfloat16 where the hardware is fast; float32 is what learns."""
    device: Annotated[str, NonEmpty("must name a torch device: cpu, cuda")] = "cpu"
    """Where torch computes: cpu, cuda, cuda:1 …"""
    seed: Annotated[int, AtLeast(0)] = 0
    """Seeds how trajectories are dealt to minibatches, what adapters start from and drop."""
    ranks: Annotated[int, AtLeast(1)] = 1
    """Processes that train together, each holding a share of weights, gradients and moments."""
    offload: bool = False
    """Keep that share in host memory, moments and optimizer included; for GPUs short of memory."""
    mixed_precision: bool = False
    """Compute in bfloat16 on weights kept in `dtype`; gradients are summed in float32."""
    recompute: bool = False
    """Recompute activations in the backward pass instead of keeping them."""
    timeout_s: Annotated[float, Finite(), MoreThan(0)] = 600.0
    """Longest a rank waits for the others before it gives up."""
    guard: Literal["stop", "warn", "off"] = "stop"
    """What to do when the engine's log-probs of a step's tokens are not the trainer's."""
    guard_tolerance: Annotated[float, Finite(), AtLeast(0, "0: by the dtype")] = 0.0
    """Mean gap in nats that is accepted; 0: 0.001, or 0.05 where bfloat16 computes."""
    lora: LoraOptions = field(default_factory=LoraOptions)
    """Adapters trained instead of the weights."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(self.betas))
        check_fields(self, "training")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError("training.betas", self.betas, "must be two numbers in [0, 1)")

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "TrainingOptions":
        """Make options from JSON values; an unknown name is refused."""
        _check_names("training.", values, cls)
        lora = values.get("lora")
        if isinstance(lora, Mapping):
            _check_names("training.lora.", lora, LoraOptions)
            values = {**values, "lora": LoraOptions(**lora)}
        return cls(**values)

    def learning_rate_at(self, step: int) -> float:
        """Return the learning rate of a step, counted from 1.

        Example:
            >>> options = TrainingOptions(
            ...     learning_rate=1.0, warmup_steps=2, lr_scheduler_type="linear", decay_steps=6
            ... )
            >>> [options.learning_rate_at(step) for step in range(1, 8)]
            [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]

        """
        if self.lr_scheduler_type != "constant" and not self.decay_steps:
            fix = "outside a run, say by which step the learning rate has fallen"
            raise ConfigError("training.decay_steps", 0, fix)
        if step <= self.warmup_steps:
            return self.learning_rate * step / self.warmup_steps
        length = self.decay_steps - self.warmup_steps
        passed = min(1.0, (step - 1 - self.warmup_steps) / length) if length > 0 else 1.0
        match self.lr_scheduler_type:
            case "constant":
                share = 1.0
            case "linear":
                share = 1 - passed
            case "cosine":
                share = (1 + math.cos(math.pi * passed)) / 2
        return self.learning_rate * (self.min_lr_ratio + (1 - self.min_lr_ratio) * share)

    @property
    def is_sharded(self) -> bool:
        """Whether weights live as shares of ranks, if only of one."""
        return self.ranks > 1 or self.offload or self.computes_copies

    @property
    def computes_copies(self) -> bool:
        """Whether bfloat16 copies of the weights compute while the weights themselves learn.

        A step of 1e-6 is less than bfloat16 can add to most weights, so what learns is float32.
        Frozen weights need no second copy: beside adapters they are bfloat16 themselves.
        """
        is_rounded = self.dtype == "bfloat16" and not self.lora.rank
        return self.mixed_precision or (is_rounded and is_checked("master_weights"))

    @property
    def weights_dtype(self) -> DType:
        """Number format in which the policy's own weights are held."""
        return "float32" if self.computes_copies and not self.lora.rank else self.dtype


def trainer_arguments(
    options: TrainingOptions,
    algorithm: Algorithm,
    *,
    import_paths: Sequence[str] = (),
    run_steps: int = 0,
) -> dict[str, Json]:
    """Return what a trainer is made with as JSON values, for a process of its own.

    `run_steps` is where the learning rate has fallen if the options do not say.

    Example:
        >>> trainer_arguments(TrainingOptions(), Rloo())["algorithm"]["type"]
        'rloo'

    """
    described: dict[str, Json] = {
        "type": name_of("algorithm", type(algorithm)),
        _PATHS: list(import_paths),
        **_plain(algorithm),
    }
    options = replace(options, decay_steps=options.decay_steps or run_steps)
    return {"options": _plain(options), "algorithm": described}


def read_algorithm(values: Mapping[str, Any]) -> Algorithm:
    """Make an algorithm from its type and fields as JSON values.

    `import_paths` among them are directories in which its module may be.

    Example:
        >>> read_algorithm({"type": "rloo", "clip_low": 0.1})
        Rloo(aggregation='token_mean', …, clip_low=0.1, …)

    """
    add_paths(values.get(_PATHS, ()))
    found = find("algorithm", values.get("type", DEFAULT_ALGORITHM), field="algorithm.type")
    own = {key: value for key, value in values.items() if key not in ("type", _PATHS)}
    for key in own.keys() - {each.name for each in fields(found)}:
        if unread := describe_unread("algorithm", found, key):
            raise ConfigError(f"algorithm.{key}", own[key], unread)
    _check_names("algorithm.", own, found)
    adapter: TypeAdapter[Any] = TypeAdapter(found)
    algorithm = adapter.validate_python(own)
    check_algorithm(algorithm)
    return algorithm


def check_algorithm(algorithm: object) -> None:
    """Refuse an object that is no algorithm, naming what it lacks.

    Example:
        >>> check_algorithm(Grpo())

    """
    wanted = ("needs", "advantages", "token_weights", "loss")
    missing = [name for name in wanted if not hasattr(algorithm, name)]
    if missing:
        kind = type(algorithm)
        fix = f"{kind.__name__} has no {', '.join(missing)}; see rollart.Algorithm"
        raise ConfigError("algorithm.type", name_of("algorithm", kind), fix)


def _plain(options: Any) -> dict[str, Json]:
    return json.loads(json.dumps(asdict(options)))


def _check_names(prefix: str, values: Mapping[str, Any], options: type) -> None:
    known = {each.name for each in fields(options)}
    for name, value in values.items():
        if name not in known:
            raise ConfigError(f"{prefix}{name}", value, "is not an option of the trainer")
