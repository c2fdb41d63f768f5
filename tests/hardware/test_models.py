"""The model table: the paper's weights, counts that follow from public shapes, clear refusals."""

from dataclasses import dataclass

import pytest

from rollart.errors import ConfigError
from rollart.hardware.models import MODEL_NAMES, ModelShape, model_from, model_named

GIB = 2**30
OWN = {"parameters": 1.5, "layers": 10, "hidden": 512, "heads": 8, "kv_heads": 2, "head_dim": 64}
MIXED = OWN | {"active_parameters": 0.5, "experts": 16, "experts_per_token": 2}


@dataclass(frozen=True)
class Rest:
    """What a public config.json says beyond the table, needed only to count its weights."""

    feed_forward: int
    vocabulary: int
    has_one_embedding: bool = False
    has_query_bias: bool = False
    has_query_norm: bool = True


PUBLIC = {
    "Qwen3-0.6B": Rest(3072, 151936, has_one_embedding=True),
    "Qwen3-1.7B": Rest(6144, 151936, has_one_embedding=True),
    "Qwen3-4B": Rest(9728, 151936, has_one_embedding=True),
    "Qwen3-8B": Rest(12288, 151936),
    "Qwen3-14B": Rest(17408, 151936),
    "Qwen3-32B": Rest(25600, 151936),
    "Qwen3-30B-A3B": Rest(768, 151936),
    "Qwen3-235B-A22B": Rest(1536, 151936),
    "Qwen2.5-7B": Rest(18944, 152064, has_query_bias=True, has_query_norm=False),
    "Qwen2.5-32B": Rest(27648, 152064, has_query_bias=True, has_query_norm=False),
    "Llama-3.1-8B": Rest(14336, 128256, has_query_norm=False),
    "Llama-3.1-70B": Rest(28672, 128256, has_query_norm=False),
}


def count_weights(shape: ModelShape, rest: Rest, *, feed_forwards: int) -> int:
    into_heads = shape.head_dim * (shape.heads + 2 * shape.kv_heads)
    attention = shape.hidden * (into_heads + shape.heads * shape.head_dim)
    attention += into_heads * rest.has_query_bias + 2 * shape.head_dim * rest.has_query_norm
    router = shape.hidden * shape.experts
    feed_forward = feed_forwards * 3 * shape.hidden * rest.feed_forward
    layer = attention + router + feed_forward + 2 * shape.hidden
    tables = 1 if rest.has_one_embedding else 2
    return shape.layers * layer + shape.hidden + tables * rest.vocabulary * shape.hidden


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_the_parameters_of_a_shipped_model_follow_from_its_shapes(name: str):
    shape = model_named(name)
    total = count_weights(shape, PUBLIC[name], feed_forwards=shape.experts or 1)
    active = count_weights(shape, PUBLIC[name], feed_forwards=shape.experts_per_token or 1)
    assert (round(shape.parameters * 1e9), round(shape.active_parameters * 1e9)) == (total, active)


@pytest.mark.parametrize(
    ("name", "paper_gib"), [("Qwen3-8B", 15.26), ("Qwen3-14B", 27.51), ("Qwen3-32B", 61.02)]
)
def test_the_weights_of_the_papers_models_are_the_papers_in_gib(name: str, paper_gib: float):
    assert round(model_named(name).weight_bytes / GIB, 2) == paper_gib


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_a_shipped_model_says_where_its_figures_are_from(name: str):
    shape = model_named(name)
    assert shape.name == name
    assert shape.source.split(";")[0].endswith(f"/{name} config.json")


def test_a_mixture_spends_only_its_active_parameters_on_a_token():
    mixture = model_named("Qwen3-30B-A3B")
    assert (mixture.experts, mixture.experts_per_token) == (128, 8)
    assert mixture.flops_per_token == pytest.approx(2 * 3.353e9, rel=1e-3)
    assert mixture.weight_bytes == pytest.approx(2 * 30.53e9, rel=1e-3)


def test_costs_of_a_token_follow_from_the_shape():
    shape = model_named("Qwen3-8B")
    assert shape.kv_bytes_per_token == 2 * 36 * 8 * 128 * 2 == 147456
    assert shape.flops_per_token == 2 * 8190735360
    assert shape.attention_flops_per_token(1000) == 4 * 36 * 32 * 128 * 1000


def test_an_unknown_model_is_refused_with_the_nearest_names_and_all():
    with pytest.raises(ConfigError) as caught:
        model_named("qwen3-8b")
    message = str(caught.value)
    assert message.startswith("model = 'qwen3-8b': not known; nearest: Qwen3-8B, ")
    assert "must be one of Qwen3-" in message


def test_a_users_dense_model_needs_no_word_of_experts():
    assert model_from("mine", OWN) == ModelShape(
        name="mine",
        parameters=1.5,
        active_parameters=1.5,
        layers=10,
        hidden=512,
        heads=8,
        kv_heads=2,
        head_dim=64,
        experts=0,
        experts_per_token=0,
        source="given by the user",
    )


def test_a_users_mixture_keeps_its_counts():
    shape = model_from("mine", MIXED)
    assert (shape.active_parameters, shape.experts, shape.experts_per_token) == (0.5, 16, 2)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (OWN | {"kv_heads": 3}, "models.mine.kv_heads = 3: must divide heads = 8"),
        (OWN | {"layers": 0}, "models.mine.layers = 0: must be a whole number of at least 1"),
        (OWN | {"parameters": -1}, "models.mine.parameters = -1: must be above 0 and finite"),
        (
            OWN | {"active_parameters": 0.5},
            "models.mine.active_parameters = 0.5: "
            "is for models with experts: set experts and experts_per_token, or omit it",
        ),
        (
            MIXED | {"experts_per_token": 17},
            "models.mine.experts_per_token = 17: must be at most experts = 16",
        ),
        (
            MIXED | {"active_parameters": 2.0},
            "models.mine.active_parameters = 2.0: must be at most parameters = 1.5",
        ),
        (
            OWN | {"experts": 16},
            "models.mine.active_parameters: is missing; give a number",
        ),
        ({}, "models.mine.parameters: is missing; give a number"),
    ],
)
def test_a_wrong_field_is_named(entry: dict[str, object], message: str):
    with pytest.raises(ConfigError) as caught:
        model_from("mine", entry)
    assert str(caught.value) == message
