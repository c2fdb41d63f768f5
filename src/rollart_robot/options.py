"""The options of a policy and of its training from demonstrations.

One policy, its rivals as values: `objective` names a method, and the fields whose default is None
get that method's own value from `resolved()`. A value the user sets always wins:

                 derivative   alignment   guidance   dispersive weight
    omp          dde          log         1 (none)   0.5
    mp1          jvp          off         2          0.5
    flowpolicy   -            -           -          0
    diffusion    -            -           -          0

Network, horizon, normaliser, budget and EMA are the same for all, so that a comparison is fair.
Loads no torch: a config is checked without it.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from rollart.constraints import AtLeast, Between, Finite, MoreThan, NonEmpty, OneOf, check_fields
from rollart.errors import ConfigError

ObjectiveName = Literal["omp", "mp1", "flowpolicy", "diffusion"]
DerivativeName = Literal["jvp", "dde", "double_backward"]
AlignmentName = Literal["off", "log", "1-cos"]

_OWN: dict[ObjectiveName, dict[str, Any]] = {
    "omp": {"derivative": "dde", "alignment": "log", "guidance": 1.0, "dispersive_weight": 0.5},
    "mp1": {"derivative": "jvp", "alignment": "off", "guidance": 2.0, "dispersive_weight": 0.5},
    "flowpolicy": {"alignment": "off", "guidance": 1.0, "dispersive_weight": 0.0},
    "diffusion": {"alignment": "off", "guidance": 1.0, "dispersive_weight": 0.0},
}
"""What each objective uses where the user set nothing."""
_MEAN_FLOW = ("omp", "mp1")
_GROUPS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerativeOptions:
    """What a policy is: its objective, the parts of that objective, its network, its horizon.

    Example:
        >>> GenerativeOptions().resolved().alignment
        'log'
        >>> GenerativeOptions(objective="mp1", guidance=1.0).resolved().derivative
        'jvp'

    """

    objective: ObjectiveName = "omp"
    """Method: omp, mp1, flowpolicy (one evaluation each) or diffusion (DDIM, several)."""
    derivative: Annotated[DerivativeName | None, OneOf(("jvp", "dde", "double_backward"))] = None
    """How du/dt is computed: jvp is exact, dde a central difference, double_backward is jvp as
    the parent code computes it, for comparing memory. None: the objective's own."""
    epsilon: Annotated[float, Finite(), MoreThan(0)] = 0.005
    """Half the width of dde's central difference, in units of t."""
    alignment: Annotated[AlignmentName | None, OneOf(("off", "log", "1-cos"))] = None
    """Directional alignment of u with e - a: -log((cos + 1) / 2), or 1 - cos, or off."""
    alignment_weight: Annotated[float, Finite(), AtLeast(0)] = 0.1
    """Weight of the alignment loss."""
    guidance: Annotated[float | None, Finite()] = None
    """MP1's self-extrapolation w: the target velocity is w v + (1 - w) u(z, t, t); 1: none."""
    dispersive_weight: Annotated[float | None, Finite(), AtLeast(0)] = None
    """Weight of the dispersive loss on the network's middle features; 0: none."""
    temperature: Annotated[float, Finite(), MoreThan(0)] = 1.0
    """Temperature of the dispersive loss; the start value where it is learned."""
    learned_temperature: bool = False
    """Train the temperature too, within a tenth and ten times its start value."""
    time_mean: Annotated[float, Finite()] = -0.4
    """(r, t) are two draws of sigmoid(N(time_mean, time_std)), sorted."""
    time_std: Annotated[float, Finite(), MoreThan(0)] = 1.0
    """See time_mean."""
    equal_time_share: Annotated[float, Between(0, 1)] = 0.5
    """Share of a batch that trains with r = t, where the target is the velocity itself."""
    loss: Literal["adaptive", "l2"] = "adaptive"
    """adaptive: each sample's squared error D has weight (D + c)^-(1 - gamma); l2: weight 1."""
    loss_gamma: Annotated[float, Between(0, 1)] = 0.5
    """gamma of the adaptive loss; 1 is l2."""
    loss_constant: Annotated[float, Finite(), MoreThan(0)] = 1e-3
    """c of the adaptive loss."""
    stop_consistency_gradient: bool = False
    """flowpolicy: let no gradient through the later of its two evaluations. The method's paper
    stops it, its code does not."""
    prediction: Literal["sample", "epsilon"] = "sample"
    """diffusion: what the network predicts, the actions or the noise."""
    diffusion_steps: Annotated[int, AtLeast(2)] = 100
    """diffusion: steps of the squared-cosine schedule."""
    inference_steps: Annotated[int, AtLeast(1)] = 10
    """diffusion: network evaluations per action chunk (DDIM)."""
    network: Literal["state", "points"] = "state"
    """state: residual MLP on the state; points: PointNet and FiLM U-Net on a point cloud too."""
    width: Annotated[int, AtLeast(8)] = 256
    """state: units of each layer."""
    blocks: Annotated[int, AtLeast(1)] = 3
    """state: residual blocks."""
    channels: Annotated[tuple[int, ...], NonEmpty("give the U-Net at least one level")] = (
        64,
        128,
        256,
    )
    """points: channels of the U-Net's levels; the paper has 512, 1024, 2048."""
    horizon: Annotated[int, AtLeast(1)] = 4
    """Actions per chunk; the first is that of the oldest observation."""
    execute: Annotated[int, AtLeast(1)] = 3
    """Actions of a chunk that are carried out before the next is computed."""
    observation_steps: Annotated[int, AtLeast(1)] = 2
    """Latest observations that the policy sees."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "channels", tuple(self.channels))
        check_fields(self, "policy")
        self._check_parts()
        self._check_steps()
        if self.network == "points":
            self._check_channels()

    @property
    def executed(self) -> slice:
        """Which actions of a chunk are carried out: from the newest observation's on."""
        first = self.observation_steps - 1
        return slice(first, first + self.execute)

    def resolved(self) -> "GenerativeOptions":
        """Return the options with the objective's own value where the user set none."""
        own = _OWN[self.objective]
        return replace(self, **{key: own[key] for key in own if getattr(self, key) is None})

    def _check_parts(self) -> None:
        if self.objective in _MEAN_FLOW:
            return
        neutral = {"derivative": None, "alignment": "off", "guidance": 1.0}
        for name, value in neutral.items():
            given = getattr(self, name)
            if given not in (None, value):
                fix = f"{self.objective} has no such part; leave it out, or use omp or mp1"
                raise ConfigError(f"policy.{name}", given, fix)

    def _check_steps(self) -> None:
        most = self.horizon - self.observation_steps + 1
        if self.execute > most:
            fix = f"must be at most horizon - observation_steps + 1 = {most}"
            raise ConfigError("policy.execute", self.execute, fix)
        if self.diffusion_steps % self.inference_steps:
            fix = f"must divide policy.diffusion_steps ({self.diffusion_steps})"
            raise ConfigError("policy.inference_steps", self.inference_steps, fix)

    def _check_channels(self) -> None:
        if any(count < 1 or count % _GROUPS for count in self.channels):
            raise ConfigError("policy.channels", self.channels, f"use multiples of {_GROUPS}")
        unit = 2 ** (len(self.channels) - 1)
        if self.horizon % unit:
            fix = f"must be a multiple of {unit}: each of the U-Net's levels but one halves it"
            raise ConfigError("policy.horizon", self.horizon, fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImitationOptions:
    """How a policy is trained from demonstrations.

    Example:
        >>> ImitationOptions(steps=3000, seed=1)

    """

    steps: Annotated[int, AtLeast(1)] = 3000
    """Optimizer steps, over which the learning rate falls to 0."""
    batch_size: Annotated[int, AtLeast(2)] = 128
    """Windows per step, drawn with replacement."""
    learning_rate: Annotated[float, Finite(), MoreThan(0)] = 1e-4
    """AdamW's step size after the warm-up; from there it follows a cosine."""
    warmup_steps: Annotated[int, AtLeast(0)] = 500
    """Steps over which the learning rate rises linearly."""
    betas: tuple[float, float] = (0.95, 0.999)
    """AdamW's decay rates of the first and second moment."""
    weight_decay: Annotated[float, Finite(), AtLeast(0)] = 1e-6
    """AdamW's decoupled decay."""
    max_grad_norm: Annotated[float, Finite(), AtLeast(0)] = 1.0
    """Gradients are scaled down to this global norm; 0 leaves them alone. The slope of `log`
    alignment has no bound, so a few opposite directions can dominate a step."""
    ema_power: Annotated[float, Finite(), MoreThan(0)] = 0.75
    """After k updates the average keeps 1 - (1 + k)^-ema_power of itself."""
    ema_limit: Annotated[float, Between(0, 1, without="high")] = 0.9999
    """Most that the average keeps of itself; 0: no average."""
    seed: int = 0
    """Of the initial weights, the windows and the noise."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(self.betas))
        check_fields(self, "imitation")
        if self.warmup_steps >= self.steps:
            fix = f"must be below imitation.steps ({self.steps})"
            raise ConfigError("imitation.warmup_steps", self.warmup_steps, fix)
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError("imitation.betas", self.betas, "must be from 0 to below 1")
