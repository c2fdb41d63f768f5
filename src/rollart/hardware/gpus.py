"""Hardware: the peak figures of GPUs and links, from public datasheets.

Figures are peaks as vendors print them; the cost model decides how much of a peak is reached. Units
are in the field names. Shipped entries and a user's own pass the same checks (`tables.Entry`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from rollart.hardware.tables import Entry, shipped, unknown

GIGA = 1e9
BITS_PER_BYTE = 8
UNSOURCED = "given by the user"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One kind of GPU.

    Example:
        gpu_named("H20").memory_gb == 96.0

    """

    name: str
    """Its name in configs."""
    dense_tflops: float
    """Peak bf16 operations without sparsity, in 10^12 per second."""
    memory_gb: float
    """Memory in 10^9 bytes."""
    hbm_tb_s: float
    """Peak memory bandwidth in 10^12 bytes per second."""
    nvlink_gb_s: float
    """All NVLink ports, both directions together, in 10^9 bytes per second; 0 if none."""
    pcie_gb_s: float
    """The PCIe port, both directions together, in 10^9 bytes per second."""
    gpus_per_node: int
    """How many share a node, and with it NVLink."""
    cost: float
    """Price of one hour relative to one H20."""
    cost_source: str
    """The source of the price."""
    source: str
    """The source of the other figures."""

    @property
    def memory_bytes(self) -> float:
        """Memory in bytes."""
        return self.memory_gb * GIGA

    @property
    def peer_bytes_per_s(self) -> float:
        """Bandwidth in one direction to a GPU of the same node: by NVLink if present, else PCIe."""
        return (self.nvlink_gb_s or self.pcie_gb_s) / 2 * GIGA


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One kind of link between machines or devices.

    Example:
        link_named("tcp_200g").gb_s == 25.0

    """

    name: str
    """Its name in configs."""
    gb_s: float
    """Nominal rate of one direction in 10^9 bytes per second."""
    weights_gb_s: float
    """The rate that moving a model's weights reaches."""
    source: str
    """The source of the rates."""


GPU_FIELDS = (
    "dense_tflops",
    "memory_gb",
    "hbm_tb_s",
    "nvlink_gb_s",
    "pcie_gb_s",
    "gpus_per_node",
    "cost",
    "cost_source",
    "source",
)
"""Fields of a GPU entry; all but the two sources must be given."""
LINK_FIELDS = ("gbit_s", "gb_s", "weights_gb_s", "source")
"""Fields of a link entry: exactly one of the two nominal rates, and the rate reached."""


def gpu_from(name: str, mapping: Mapping[str, object]) -> Gpu:
    """Return the GPU of an entry; raise ConfigError naming the field that is wrong."""
    entry = Entry(section=f"gpus.{name}", values=mapping)
    entry.check_fields(GPU_FIELDS)
    return Gpu(
        name=name,
        dense_tflops=entry.number("dense_tflops"),
        memory_gb=entry.number("memory_gb"),
        hbm_tb_s=entry.number("hbm_tb_s"),
        nvlink_gb_s=entry.number("nvlink_gb_s", may_be_zero=True),
        pcie_gb_s=entry.number("pcie_gb_s"),
        gpus_per_node=entry.whole("gpus_per_node"),
        cost=entry.number("cost"),
        cost_source=entry.text("cost_source", default=UNSOURCED),
        source=entry.text("source", default=UNSOURCED),
    )


def link_from(name: str, mapping: Mapping[str, object]) -> Link:
    """Return the link of an entry; raise ConfigError naming the field that is wrong."""
    entry = Entry(section=f"links.{name}", values=mapping)
    entry.check_fields(LINK_FIELDS)
    if "gbit_s" in mapping and "gb_s" in mapping:
        raise entry.error("gb_s", "give either gbit_s or gb_s, not both")
    rate = entry.number("gb_s") if "gb_s" in mapping else entry.number("gbit_s") / BITS_PER_BYTE
    reached = entry.number("weights_gb_s") if "weights_gb_s" in mapping else rate
    if reached > rate:
        raise entry.error("weights_gb_s", f"must be at most the nominal {rate:g} GB/s")
    source = entry.text("source", default=UNSOURCED)
    return Link(name=name, gb_s=rate, weights_gb_s=reached, source=source)


@cache
def _gpus() -> dict[str, Gpu]:
    entries = shipped("hardware.toml", table="gpus")
    return {name: gpu_from(name, values) for name, values in entries.items()}


@cache
def _links() -> dict[str, Link]:
    entries = shipped("hardware.toml", table="links")
    return {name: link_from(name, values) for name, values in entries.items()}


GPU_NAMES: tuple[str, ...] = tuple(_gpus())
"""Names of the shipped GPUs."""
LINK_NAMES: tuple[str, ...] = tuple(_links())
"""Names of the shipped links."""


def gpu_named(name: str, *, field: str = "gpu") -> Gpu:
    """Return a shipped GPU; errors name `field` as the origin of the name."""
    if name in _gpus():
        return _gpus()[name]
    raise unknown(field, name, known=GPU_NAMES)


def link_named(name: str, *, field: str = "link") -> Link:
    """Return a shipped link; errors name `field` as the origin of the name."""
    if name in _links():
        return _links()[name]
    raise unknown(field, name, known=LINK_NAMES)
