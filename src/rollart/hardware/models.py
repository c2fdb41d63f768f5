"""Models: the shapes that decide how many bytes and operations a token costs.

Only counts that follow from a model's public configuration are here. Weights and keys and values
are bf16; the cost model decides how fast they move and multiply.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from rollart.hardware.gpus import UNSOURCED, Entry, shipped, unknown

BILLION = 1e9
BF16_BYTES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """One decoder with grouped-query attention, dense or a mixture of experts.

    Example:
        model_named("Qwen3-8B").kv_bytes_per_token == 147_456

    """

    name: str
    """Its name in configs."""
    parameters: float
    """Weights in billions."""
    active_parameters: float
    """Weights that one token passes through, in billions."""
    layers: int
    """Decoder layers."""
    hidden: int
    """Width of the residual stream."""
    heads: int
    """Query heads of a layer."""
    kv_heads: int
    """Key and value heads of a layer."""
    head_dim: int
    """Width of one head."""
    experts: int
    """Routed experts of a layer; 0 if dense."""
    experts_per_token: int
    """Routed experts one token passes through in a layer; 0 if dense."""
    source: str
    """The source of the figures."""

    @property
    def weight_bytes(self) -> float:
        """Bytes of all weights in bf16."""
        return self.parameters * BILLION * BF16_BYTES

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values of one cached token, in bf16."""
        return 2 * self.layers * self.kv_heads * self.head_dim * BF16_BYTES

    def kv_bytes_over(self, tp: int) -> float:
        """Return the bytes of one cached token over all `tp` GPUs of an engine.

        With more GPUs than key and value heads, several GPUs hold the same head.
        """
        return self.kv_bytes_per_token * max(1.0, tp / self.kv_heads)

    @property
    def flops_per_token(self) -> float:
        """Operations of one token in the forward pass, without attention to its context."""
        return 2 * self.active_parameters * BILLION

    def attention_flops_per_token(self, context: float) -> float:
        """Return the operations of one new token that attends to `context` tokens."""
        return 4 * self.layers * self.heads * self.head_dim * context


MODEL_FIELDS = (
    "parameters",
    "active_parameters",
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "head_dim",
    "experts",
    "experts_per_token",
    "source",
)
"""Fields of a model entry; a dense model leaves out active_parameters and both expert counts."""


def model_from(name: str, mapping: Mapping[str, object]) -> ModelShape:
    """Return the model of an entry; raise ConfigError naming the field that is wrong."""
    dense = {"active_parameters": mapping.get("parameters"), "experts": 0, "experts_per_token": 0}
    is_dense = not mapping.get("experts")
    given = dense | dict(mapping) if is_dense else dict(mapping)
    entry = Entry(section=f"models.{name}", values=given)
    entry.check_fields(MODEL_FIELDS)
    shape = ModelShape(
        name=name,
        parameters=entry.number("parameters"),
        active_parameters=entry.number("active_parameters"),
        layers=entry.whole("layers"),
        hidden=entry.whole("hidden"),
        heads=entry.whole("heads"),
        kv_heads=entry.whole("kv_heads"),
        head_dim=entry.whole("head_dim"),
        experts=entry.whole("experts", least=0),
        experts_per_token=entry.whole("experts_per_token", least=0 if is_dense else 1),
        source=entry.text("source", default=UNSOURCED),
    )
    _check_shape(shape, entry)
    return shape


def _check_shape(shape: ModelShape, entry: Entry) -> None:
    if shape.heads % shape.kv_heads:
        raise entry.error("kv_heads", f"must divide heads = {shape.heads}")
    if shape.experts_per_token > shape.experts:
        raise entry.error("experts_per_token", f"must be at most experts = {shape.experts}")
    if shape.active_parameters > shape.parameters:
        raise entry.error("active_parameters", f"must be at most parameters = {shape.parameters}")
    if not shape.experts and shape.active_parameters != shape.parameters:
        raise entry.error(
            "active_parameters",
            "is for models with experts: set experts and experts_per_token, or omit it",
        )


@cache
def _models() -> dict[str, ModelShape]:
    entries = shipped("models.toml", table="models")
    return {name: model_from(name, values) for name, values in entries.items()}


MODEL_NAMES: tuple[str, ...] = tuple(_models())
"""Names of the shipped models."""


def model_named(name: str, *, field: str = "model") -> ModelShape:
    """Return a shipped model; errors name `field` as the origin of the name."""
    if name in _models():
        return _models()[name]
    raise unknown(field, name, known=MODEL_NAMES)
