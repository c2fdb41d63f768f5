"""Hardware: the peak figures of GPUs and links, from public datasheets.

Figures are peaks as vendors print them; the cost model decides how much of a peak is reached. Units
are in the field names.

Shipped entries and a user's own pass the same checks (`Entry`), so an entry that loads is complete:
every field is present or has a default, has the right type and is in its range.
"""

import math
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import resources
from typing import cast

from rollart.errors import ConfigError
from rollart.plugins import HARDWARE_TABLES


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One table of figures and its name in errors.

    Example:
        Entry(section="gpus.mine", values={"memory_gb": 80}).number("memory_gb") == 80.0

    """

    section: str
    """The name of the table in messages, such as `gpus.H20`."""
    values: Mapping[str, object]
    """The figures by field."""

    def check_fields(self, allowed: Collection[str]) -> None:
        """Raise ConfigError for an unknown field, with the nearest known one."""
        for key, value in self.values.items():
            if key not in allowed:
                near = get_close_matches(key, allowed, n=1)
                hint = f"did you mean {near[0]}? " if near else ""
                fix = f"no such field; {hint}fields: {', '.join(allowed)}"
                raise ConfigError(f"{self.section}.{key}", value, fix)

    def number(self, key: str, *, may_be_zero: bool = False) -> float:
        """Return a finite number above zero, or at least zero with `may_be_zero`."""
        value = self._present(key, "a number")
        wanted = "at least 0" if may_be_zero else "above 0"
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, f"must be a number {wanted}")
        if not math.isfinite(value) or value < 0 or (value == 0 and not may_be_zero):
            raise self.error(key, f"must be {wanted} and finite")
        return float(value)

    def whole(self, key: str, *, least: int = 1) -> int:
        """Return a whole number of at least `least`."""
        value = self._present(key, "a whole number")
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(key, f"must be a whole number of at least {least}")
        return value

    def text(self, key: str, *, default: str) -> str:
        """Return a text that is not empty, or the default if the field is missing."""
        value = self.values.get(key, default)
        if not isinstance(value, str) or not value.strip():
            raise self.error(key, "must be a text that is not empty")
        return value

    def error(self, key: str, fix: str) -> ConfigError:
        """Return a ConfigError that names this field and its value."""
        return ConfigError(f"{self.section}.{key}", self.values.get(key), fix)

    def _present(self, key: str, kind: str) -> object:
        if key not in self.values:
            raise self.error(key, f"is missing; give {kind}")
        return self.values[key]


def shipped(file: str, *, table: str) -> dict[str, Mapping[str, object]]:
    """Return the entries of one table of a shipped data file, by name."""
    text = resources.files(HARDWARE_TABLES).joinpath("data", file).read_text(encoding="utf-8")
    return cast("dict[str, Mapping[str, object]]", tomllib.loads(text)[table])


def unknown(field: str, name: str, *, known: Collection[str]) -> ConfigError:
    """Return the error for an unknown name: the nearest names, then all."""
    hint = ", ".join(_nearest(name.casefold(), {each.casefold(): each for each in known}))
    near = f"nearest: {hint}; " if hint else ""
    return ConfigError(field, name, f"not known; {near}must be one of {', '.join(known)}")


def _nearest(folded: str, known: Mapping[str, str]) -> list[str]:
    begun = [each for each in known if folded and each.startswith(folded)]
    alike = get_close_matches(folded, known)
    return [known[each] for each in dict.fromkeys([*begun, *alike])][:3]


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
