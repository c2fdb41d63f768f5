"""Transfer: how long weights take from the trainer to the engines, over named links in buckets.

    trainer ─ push ─► store beside the engines ─ pull ─► hosts of the engines ─ install ─► engines

Two hops and a load. The first two overlap bucket by bucket, so both together take as long as the
slower and one bucket of the other. They run beside the rollout; engines stand still only for what
of the pull is left when the push ends, and for the load. A broadcast that blocks goes the same
way, with the engines standing still for all of it.
"""

from dataclasses import dataclass, field

from rollart.sim.costs import Constants
from rollart.sim.hardware import Gpu, Link, link_named
from rollart.sim.models import ModelShape

_GB = 1e9
USUAL_LINK = "tcp_200g"
"""What weights cross where nothing else is named: the link between clusters of the paper."""


def pipelined_s(size_gb: float, rates_gb_s: tuple[float, float], *, bucket_gb: float) -> float:
    """Return how long two hops take that overlap bucket by bucket."""
    first, second = rates_gb_s
    bucket = min(bucket_gb, size_gb)
    return max(size_gb / first + bucket / second, bucket / first + size_gb / second)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightCosts:
    """What moving one version from the trainer to the engines needs."""

    model: ModelShape
    push_link: Link = field(default_factory=lambda: link_named(USUAL_LINK))
    """Between the trainer and the store."""
    pull_link: Link = field(default_factory=lambda: link_named(USUAL_LINK))
    """Between the store and the engines."""
    constants: Constants = field(default_factory=Constants)
    blocking: bool = False
    """Broadcast while the engines stand still, instead of moving weights beside the rollout."""

    @property
    def push_s(self) -> float:
        """Time until the store beside the engines holds the version."""
        return self._size_gb / self._push_gb_s

    @property
    def pull_s(self) -> float:
        """Time engines' hosts spend pulling it, hidden or not."""
        return self._size_gb / self.pull_link.weights_gb_s

    @property
    def install_s(self) -> float:
        """Time to load it from the host into the engines."""
        return self._size_gb / self.constants.install_gb_s

    @property
    def exposed_s(self) -> float:
        """Time engines stand still for it: the pull that the push did not hide, and the load."""
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
        """Time until the engines' hosts hold the version."""
        rates = (self._push_gb_s, self.pull_link.weights_gb_s)
        return pipelined_s(self._size_gb, rates, bucket_gb=self.constants.bucket_gb)


@dataclass(frozen=True, slots=True, kw_only=True)
class LendCosts:
    """What making engines of training GPUs needs.

    What training keeps stays in their memory if the weights fit beside it. If not, it goes to the
    host's memory for the time, over one direction of each GPU's PCIe.
    """

    model: ModelShape
    gpu: Gpu
    gpus: int
    """That train, and share what training keeps."""
    tp: int
    """GPUs of one lent engine."""
    pull_link: Link = field(default_factory=lambda: link_named(USUAL_LINK))
    """Between the store and the lent engines."""
    constants: Constants = field(default_factory=Constants)

    @property
    def held_gb(self) -> float:
        """Memory of each GPU that a lent engine must leave alone."""
        return self._state_gb if self._fits else 0.0

    @property
    def lend_s(self) -> float:
        """Time until the hardware serves: the weights, pulled and loaded bucket by bucket."""
        rates = (self.pull_link.weights_gb_s, self.constants.install_gb_s)
        size_gb = self.model.weight_bytes / _GB
        return self.recall_s + pipelined_s(size_gb, rates, bucket_gb=self.constants.bucket_gb)

    @property
    def recall_s(self) -> float:
        """Time until it can train again; its own weights never left."""
        moved_s = 0.0 if self._fits else 2 * self._state_gb / self.gpu.pcie_gb_s
        return self.constants.switch_s + moved_s

    @property
    def _state_gb(self) -> float:
        return self.model.parameters * self.constants.state_bytes / self.gpus

    @property
    def _fits(self) -> bool:
        free_gb = self.gpu.memory_gb * self.constants.memory_share - self._state_gb
        return self.tp * free_gb * _GB > self.model.weight_bytes
