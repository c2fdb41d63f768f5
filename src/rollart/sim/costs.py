"""Costs: how long generation, training and weight transfer take on a given hardware.

A roofline with few constants. Prefill is bound by arithmetic: two operations per active parameter
and token, plus attention. A decode step is bound by memory: it reads the weights once and every
running sequence's keys and values. Tensor parallelism divides both, but for keys and values that
several GPUs must hold, and pays two all-reduces per layer over NVLink, or PCIe where there is
none. Training is arithmetic at a stated utilisation. How weights move is in `transfer`.

Constants that were fitted, and on which figures, are listed in docs/simulator.md.
"""

from dataclasses import dataclass, field

from rollart.errors import ConfigError
from rollart.sim.hardware import Gpu
from rollart.sim.models import ModelShape

_GB = 1e9
_BYTES = 2
"""Of one number in bf16."""


_SHARES = ("prefill_utilisation", "decode_utilisation", "train_utilisation", "memory_share")
_NOT_NEGATIVE = (
    "step_overhead_s",
    "train_fixed_s",
    "push_gb_s",
    "rpc_s",
    "switch_s",
    "state_bytes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What the roofline cannot know."""

    prefill_utilisation: float = 0.6
    """Share of the dense arithmetic peak that prefill reaches."""
    decode_utilisation: float = 0.7
    """Share of the memory bandwidth that decoding reaches."""
    step_overhead_s: float = 0.004
    """What every engine step costs beside arithmetic and memory: scheduling, sampling."""
    chunk_tokens: int = 2048
    """Prompt tokens of one prefill step; running sequences decode one token beside each."""
    memory_share: float = 0.9
    """Share of a GPU's memory that weights and cache may use."""
    train_utilisation: float = 0.15
    """Share of the dense arithmetic peak an optimizer step reaches, all of its passes counted."""
    train_fixed_s: float = 80.0
    """What every optimizer step costs beside that: loading the batch, gathering, the optimizer."""
    push_gb_s: float = 0.0
    """Most a store takes in from the trainer per second; 0: as much as the link brings."""
    install_gb_s: float = 7.2
    """Speed at which a host loads a version it has into its engines, which stand still."""
    bucket_gb: float = 1.0
    """Weights that travel as one piece: a bucket is pulled while the next is pushed."""
    rpc_s: float = 0.02
    """Mean of a call to an environment on another machine."""
    switch_s: float = 5.0
    """What lending or recalling training hardware costs beside moving bytes."""
    state_bytes: float = 16.0
    """Bytes that training keeps per parameter: weights, gradients and the optimizer's state."""

    def __post_init__(self) -> None:
        for name in _SHARES:
            if not 0 < getattr(self, name) <= 1:
                raise _wrong(name, getattr(self, name), "must be more than 0 and at most 1")
        for name in ("chunk_tokens", "install_gb_s", "bucket_gb"):
            if not getattr(self, name) > 0:
                raise _wrong(name, getattr(self, name), "must be more than 0")
        for name in _NOT_NEGATIVE:
            if not getattr(self, name) >= 0:
                raise _wrong(name, getattr(self, name), "must be at least 0")


def _wrong(name: str, value: float, fix: str) -> ConfigError:
    return ConfigError(f"simulation.constants.{name}", value, fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCosts:
    """What one engine of `tp` GPUs needs for its steps."""

    model: ModelShape
    gpu: Gpu
    tp: int
    constants: Constants = field(default_factory=Constants)
    held_gb: float = 0.0
    """Memory of each GPU that something else keeps."""
    prefill_token_s: float = field(init=False)
    """Seconds per prompt token, attention apart."""
    attention_s: float = field(init=False)
    """Seconds per pair of a prompt token and a token it attends to."""
    cache_token_s: float = field(init=False)
    """Seconds a decode step needs to read one cached token."""
    capacity_tokens: int = field(init=False)
    """Tokens whose keys and values fit beside the weights."""
    _reduce_token_s: float = field(init=False, repr=False, compare=False)
    _fixed_s: list[tuple[float, float, float]] = field(init=False, repr=False, compare=False)
    """By number of sequences: reading the weights, arithmetic, and what is paid on top."""

    def __post_init__(self) -> None:
        model, gpu, constants = self.model, self.gpu, self.constants
        flops = self.tp * gpu.dense_tflops * 1e12 * constants.prefill_utilisation
        bandwidth = self.tp * gpu.hbm_tb_s * 1e12 * constants.decode_utilisation
        usable_gb = gpu.memory_gb * constants.memory_share - self.held_gb
        room = self.tp * usable_gb * _GB - model.weight_bytes
        if room <= 0:
            raise ConfigError(
                "pools.tp",
                self.tp,
                f"{model.name} needs {model.weight_bytes / _GB:.0f} GB for its weights, "
                f"{self.tp} × {gpu.name} has {self.tp * gpu.memory_gb:.0f} GB: "
                "raise tp or take larger GPUs",
            )
        set_ = object.__setattr__
        moved = 2 * (self.tp - 1) / self.tp * model.hidden * _BYTES
        set_(self, "_reduce_token_s", 2 * model.layers * moved / gpu.peer_bytes_per_s)
        set_(self, "_fixed_s", [])
        set_(self, "prefill_token_s", model.flops_per_token / flops + self._reduce_token_s)
        set_(self, "attention_s", model.attention_flops_per_token(1) / flops)
        cached_bytes = model.kv_bytes_over(self.tp)
        set_(self, "cache_token_s", cached_bytes / bandwidth)
        set_(self, "capacity_tokens", int(room / cached_bytes))

    def prefill_s(self, tokens: float, *, cached: float) -> float:
        """Return the time to read `tokens` that follow `cached` ones."""
        pairs = tokens * (cached + tokens / 2)
        return tokens * self.prefill_token_s + pairs * self.attention_s

    def decode_s(self, sequences: int, *, cached: float) -> float:
        """Return the time of one step that samples a token for each of some sequences.

        `cached` counts the tokens of all of them together.
        """
        while len(self._fixed_s) <= sequences:
            self._fixed_s.append(self._fixed(len(self._fixed_s)))
        read_s, compute_s, beside_s = self._fixed_s[sequences]
        memory_s = read_s + cached * self.cache_token_s
        return (memory_s if memory_s > compute_s else compute_s) + beside_s

    def _fixed(self, sequences: int) -> tuple[float, float, float]:
        """Return what of a decode step does not depend on the cache."""
        model, constants = self.model, self.constants
        bandwidth = self.tp * self.gpu.hbm_tb_s * 1e12 * constants.decode_utilisation
        read_s = model.weight_bytes * _touched_share(model, sequences) / bandwidth
        beside_s = constants.step_overhead_s + sequences * self._reduce_token_s
        compute_s = sequences * (self.prefill_token_s - self._reduce_token_s)
        return read_s, compute_s, beside_s


def _touched_share(model: ModelShape, sequences: int) -> float:
    """Return the share of the weights a decode step reads: experts nobody chose are not."""
    if not model.experts:
        return 1.0
    chosen = model.experts_per_token / model.experts
    experts = (model.parameters - model.active_parameters) / (1 - chosen)
    untouched = experts * (1 - chosen) ** sequences
    return 1 - untouched / model.parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainCosts:
    """What one optimizer step needs on some GPUs."""

    model: ModelShape
    gpu: Gpu
    gpus: int
    constants: Constants = field(default_factory=Constants)

    def step_s(self, tokens: float) -> float:
        """Return the time to train on so many tokens: forward, and twice that backward."""
        flops = 3 * self.model.flops_per_token * tokens
        peak = self.gpus * self.gpu.dense_tflops * 1e12
        constants = self.constants
        return constants.train_fixed_s + flops / (peak * constants.train_utilisation)
