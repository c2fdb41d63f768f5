"""Costs: how long generation, training and weight transfer take on given hardware.

A roofline with few constants; docs/simulator.md lists which were fitted, and to what. Prefill is
bound by arithmetic, a decode step by memory: it reads the weights once and every sequence's keys
and values. Tensor parallelism divides both and pays two all-reduces per layer. Training is
arithmetic at a given utilisation. Weights move in two hops, then are loaded:

    trainer ─ push ─► store beside the engines ─ pull ─► hosts of the engines ─ install ─► engines

Push and pull overlap bucket by bucket and run beside the rollout, so engines pause only for the
rest of the pull and for the load. A blocking broadcast takes the same way with the engines paused.
"""

from dataclasses import dataclass, field

from rollart.config.simulation import Constants
from rollart.errors import ConfigError
from rollart.hardware.gpus import Gpu, Link, link_named
from rollart.hardware.models import ModelShape

_GB = 1e9
_BYTES = 2
"""Of one number in bf16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineCosts:
    """The cost of the steps of one engine of `tp` GPUs.

    Example:
        costs = EngineCosts(model=model_named("Qwen3-8B"), gpu=gpu_named("H800"), tp=1)
        costs.decode_s(32, cached=32 * 4000)  # seconds of a step that samples 32 tokens

    """

    model: ModelShape
    gpu: Gpu
    tp: int
    constants: Constants = field(default_factory=Constants)
    held_gb: float = 0.0
    """Memory of each GPU that is not available to the engine."""
    prefill_token_s: float = field(init=False)
    """Seconds per prompt token, without attention."""
    attention_s: float = field(init=False)
    """Seconds per pair of a prompt token and a token it attends to."""
    cache_token_s: float = field(init=False)
    """Seconds a decode step needs to read one cached token."""
    capacity_tokens: int = field(init=False)
    """Tokens whose keys and values fit in memory beside the weights."""
    _reduce_token_s: float = field(init=False, repr=False, compare=False)
    _fixed_s: list[tuple[float, float, float]] = field(init=False, repr=False, compare=False)
    """By number of sequences: seconds of reading weights, of arithmetic, and of overhead."""

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
                "raise tp or use GPUs with more memory",
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
        """Return the time to prefill `tokens` that follow `cached` ones."""
        pairs = tokens * (cached + tokens / 2)
        return tokens * self.prefill_token_s + pairs * self.attention_s

    def decode_s(self, sequences: int, *, cached: float) -> float:
        """Return the time of one step that samples a token for each of `sequences` sequences.

        `cached` is the total of their cached tokens.
        """
        while len(self._fixed_s) <= sequences:
            self._fixed_s.append(self._fixed(len(self._fixed_s)))
        read_s, compute_s, beside_s = self._fixed_s[sequences]
        memory_s = read_s + cached * self.cache_token_s
        return (memory_s if memory_s > compute_s else compute_s) + beside_s

    def _fixed(self, sequences: int) -> tuple[float, float, float]:
        """Return the parts of a decode step that do not depend on the cache."""
        model, constants = self.model, self.constants
        bandwidth = self.tp * self.gpu.hbm_tb_s * 1e12 * constants.decode_utilisation
        read_s = model.weight_bytes * _touched_share(model, sequences) / bandwidth
        beside_s = constants.step_overhead_s + sequences * self._reduce_token_s
        compute_s = sequences * (self.prefill_token_s - self._reduce_token_s)
        return read_s, compute_s, beside_s


def _touched_share(model: ModelShape, sequences: int) -> float:
    """Return the share of the weights a decode step reads: unused experts are not read."""
    if not model.experts:
        return 1.0
    chosen = model.experts_per_token / model.experts
    experts = (model.parameters - model.active_parameters) / (1 - chosen)
    untouched = experts * (1 - chosen) ** sequences
    return 1 - untouched / model.parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainCosts:
    """The cost of one optimizer step on some GPUs.

    Example:
        costs = TrainCosts(model=model_named("Qwen3-8B"), gpu=gpu_named("H800"), gpus=32)
        costs.step_s(4_000_000)  # seconds

    """

    model: ModelShape
    gpu: Gpu
    gpus: int
    constants: Constants = field(default_factory=Constants)

    def step_s(self, tokens: float) -> float:
        """Return the time to train on `tokens` tokens: a backward pass costs two forward ones."""
        flops = 3 * self.model.flops_per_token * tokens
        peak = self.gpus * self.gpu.dense_tflops * 1e12
        constants = self.constants
        return constants.train_fixed_s + flops / (peak * constants.train_utilisation)


USUAL_LINK = "tcp_200g"
"""The default link for weights: the one between the paper's clusters."""


def pipelined_s(size_gb: float, rates_gb_s: tuple[float, float], *, bucket_gb: float) -> float:
    """Return the time of two hops that overlap bucket by bucket."""
    first, second = rates_gb_s
    bucket = min(bucket_gb, size_gb)
    return max(size_gb / first + bucket / second, bucket / first + size_gb / second)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightCosts:
    """The cost of moving one version from the trainer to the engines.

    Example:
        WeightCosts(model=model_named("Qwen3-8B")).exposed_s  # seconds that engines pause

    """

    model: ModelShape
    push_link: Link = field(default_factory=lambda: link_named(USUAL_LINK))
    """The link between the trainer and the store."""
    pull_link: Link = field(default_factory=lambda: link_named(USUAL_LINK))
    """The link between the store and the engines."""
    constants: Constants = field(default_factory=Constants)
    blocking: bool = False
    """Whether engines pause for the whole transfer, instead of it running beside the rollout."""

    @property
    def push_s(self) -> float:
        """Time until the store beside the engines has the version."""
        return self._size_gb / self._push_gb_s

    @property
    def pull_s(self) -> float:
        """Time the engines' hosts spend pulling it, whether engines pause or not."""
        return self._size_gb / self.pull_link.weights_gb_s

    @property
    def install_s(self) -> float:
        """Time to load it from the host into the engines."""
        return self._size_gb / self.constants.install_gb_s

    @property
    def exposed_s(self) -> float:
        """Time engines pause for it: the pull that did not overlap the push, and the load."""
        return self._arrival_s - self.push_s + self.install_s

    @property
    def publish_s(self) -> float:
        """Time from the end of a step until engines may load its weights."""
        return 0.0 if self.blocking else self.push_s

    @property
    def update_s(self) -> float:
        """Time a suspended engine needs to load them."""
        return self._arrival_s + self.install_s if self.blocking else self.exposed_s

    @property
    def _size_gb(self) -> float:
        return self.model.weight_bytes / _GB

    @property
    def _push_gb_s(self) -> float:
        rate = self.push_link.weights_gb_s
        return min(self.constants.push_gb_s or rate, rate)

    @property
    def _arrival_s(self) -> float:
        """Time until the engines' hosts have the version."""
        rates = (self._push_gb_s, self.pull_link.weights_gb_s)
        return pipelined_s(self._size_gb, rates, bucket_gb=self.constants.bucket_gb)


@dataclass(frozen=True, slots=True, kw_only=True)
class LendCosts:
    """The cost of turning training GPUs into engines, and back.

    The training state stays in GPU memory if the weights fit beside it. If not, it is moved to the
    host's memory meanwhile, over one direction of each GPU's PCIe.

    Example:
        h800 = gpu_named("H800")
        LendCosts(model=model_named("Qwen3-8B"), gpu=h800, gpus=32, tp=1).lend_s  # seconds

    """

    model: ModelShape
    gpu: Gpu
    gpus: int
    """GPUs that train and share the training state."""
    tp: int
    """GPUs of one lent engine."""
    pull_link: Link = field(default_factory=lambda: link_named(USUAL_LINK))
    """Between the store and the lent engines."""
    constants: Constants = field(default_factory=Constants)

    @property
    def held_gb(self) -> float:
        """Memory of each GPU that a lent engine must not use."""
        return self._state_gb if self._fits else 0.0

    @property
    def lend_s(self) -> float:
        """Time until the hardware serves: weights are pulled and loaded bucket by bucket."""
        rates = (self.pull_link.weights_gb_s, self.constants.install_gb_s)
        size_gb = self.model.weight_bytes / _GB
        return self.recall_s + pipelined_s(size_gb, rates, bucket_gb=self.constants.bucket_gb)

    @property
    def recall_s(self) -> float:
        """Time until it can train again; its own weights stayed on the GPUs."""
        moved_s = 0.0 if self._fits else 2 * self._state_gb / self.gpu.pcie_gb_s
        return self.constants.switch_s + moved_s

    @property
    def _state_gb(self) -> float:
        return self.model.parameters * self.constants.state_bytes / self.gpus

    @property
    def _fits(self) -> bool:
        free_gb = self.gpu.memory_gb * self.constants.memory_share - self._state_gb
        return self.tp * free_gb * _GB > self.model.weight_bytes
