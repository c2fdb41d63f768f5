"""The hardware tables: the paper's figures, complete entries, and clear refusals."""

import math

import pytest

from rollart.errors import ConfigError
from rollart.hardware.gpus import (
    GPU_NAMES,
    LINK_NAMES,
    Gpu,
    Link,
    gpu_from,
    gpu_named,
    link_from,
    link_named,
)

OWN = {
    "dense_tflops": 100,
    "memory_gb": 32,
    "hbm_tb_s": 1.5,
    "nvlink_gb_s": 0,
    "pcie_gb_s": 64,
    "gpus_per_node": 4,
    "cost": 0.5,
}


def paper_figures(gpu: Gpu) -> tuple[float, ...]:
    return (gpu.dense_tflops, gpu.memory_gb, gpu.hbm_tb_s, gpu.nvlink_gb_s, gpu.cost)


def test_the_two_gpus_of_the_paper_have_the_papers_figures():
    assert paper_figures(gpu_named("H20")) == (148, 96, 4.0, 900, 1.00)
    assert paper_figures(gpu_named("H800")) == (989.5, 80, 3.35, 400, 2.85)


def test_the_usual_gpus_and_links_are_shipped():
    compute = ["H20", "H800", "A100-80G", "H100-SXM", "H200", "B200"]
    smaller = ["L40S", "L20", "A10", "RTX4090", "CPU"]
    assert list(GPU_NAMES) == compute + smaller
    assert list(LINK_NAMES) == ["tcp_200g", "rdma_400g", "tcp_100g", "tcp_10g", "nvlink", "pcie"]


@pytest.mark.parametrize("name", GPU_NAMES)
def test_a_shipped_gpu_loads_and_says_where_its_figures_are_from(name: str):
    gpu = gpu_named(name)
    assert gpu.name == name
    assert "given by the user" not in (gpu.source, gpu.cost_source)


@pytest.mark.parametrize("name", LINK_NAMES)
def test_a_shipped_link_loads_and_says_where_its_rate_is_from(name: str):
    link = link_named(name)
    assert link.name == name
    assert link.source != "given by the user"


def test_a_table_is_read_once():
    assert gpu_named("H20") is gpu_named("H20")


def test_figures_are_also_given_in_bytes():
    h20 = gpu_named("H20")
    assert (h20.memory_bytes, h20.peer_bytes_per_s) == (96e9, 450e9)
    assert gpu_named("L20").peer_bytes_per_s == 32e9
    assert link_named("tcp_200g").gb_s == 25
    assert link_named("pcie").gb_s == 64


def test_an_unknown_gpu_is_refused_with_the_nearest_names_and_all():
    with pytest.raises(ConfigError) as caught:
        gpu_named("h80", field="pools.0.gpu")
    message = str(caught.value)
    assert message.startswith("pools.0.gpu = 'h80': not known; nearest: H800")
    assert "must be one of H20, H800, A100-80G" in message


def test_a_name_cut_short_finds_the_whole_name_first():
    with pytest.raises(ConfigError, match="nearest: H100-SXM, "):
        gpu_named("H100")


def test_an_unknown_link_is_refused_with_all_names():
    with pytest.raises(ConfigError) as caught:
        link_named("fibre_64")
    assert str(caught.value) == (
        "link = 'fibre_64': not known; "
        "must be one of tcp_200g, rdma_400g, tcp_100g, tcp_10g, nvlink, pcie"
    )


def test_a_users_gpu_passes_the_same_checks_as_a_shipped_one():
    assert gpu_from("X1", OWN) == Gpu(
        name="X1",
        dense_tflops=100,
        memory_gb=32,
        hbm_tb_s=1.5,
        nvlink_gb_s=0,
        pcie_gb_s=64,
        gpus_per_node=4,
        cost=0.5,
        cost_source="given by the user",
        source="given by the user",
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"memory_gb": 0}, "gpus.X1.memory_gb = 0: must be above 0 and finite"),
        ({"hbm_tb_s": math.nan}, "gpus.X1.hbm_tb_s = nan: must be above 0 and finite"),
        ({"nvlink_gb_s": -1}, "gpus.X1.nvlink_gb_s = -1: must be at least 0 and finite"),
        ({"cost": "cheap"}, "gpus.X1.cost = 'cheap': must be a number above 0"),
        ({"cost": True}, "gpus.X1.cost = True: must be a number above 0"),
        (
            {"gpus_per_node": 2.5},
            "gpus.X1.gpus_per_node = 2.5: must be a whole number of at least 1",
        ),
        ({"source": " "}, "gpus.X1.source = ' ': must be a text that is not empty"),
    ],
)
def test_a_wrong_figure_is_named(change: dict[str, object], message: str):
    with pytest.raises(ConfigError) as caught:
        gpu_from("X1", OWN | change)
    assert str(caught.value) == message


def test_a_missing_figure_is_named():
    with pytest.raises(ConfigError) as caught:
        gpu_from("X1", {key: value for key, value in OWN.items() if key != "pcie_gb_s"})
    assert str(caught.value) == "gpus.X1.pcie_gb_s: is missing; give a number"


def test_a_field_that_nothing_reads_is_refused():
    with pytest.raises(ConfigError) as caught:
        gpu_from("X1", OWN | {"memory_gib": 30})
    start = "gpus.X1.memory_gib = 30: no such field; did you mean memory_gb? fields: dense_tflops"
    assert str(caught.value).startswith(start)


def test_a_links_rate_is_given_in_bits_or_in_bytes_but_not_in_both():
    assert link_from("fast", {"gbit_s": 800}) == Link(
        name="fast", gb_s=100, weights_gb_s=100, source="given by the user"
    )
    assert link_from("fast", {"gb_s": 100}) == link_from("fast", {"gbit_s": 800})
    with pytest.raises(ConfigError, match="give either gbit_s or gb_s, not both"):
        link_from("fast", {"gbit_s": 800, "gb_s": 100})
    with pytest.raises(ConfigError, match=r"links\.fast\.gbit_s: is missing"):
        link_from("fast", {})


def test_what_weights_reach_of_a_link_is_at_most_its_nominal_rate():
    assert link_from("fast", {"gb_s": 100, "weights_gb_s": 40}).weights_gb_s == 40
    with pytest.raises(ConfigError) as caught:
        link_from("fast", {"gb_s": 100, "weights_gb_s": 400})
    message = "links.fast.weights_gb_s = 400: must be at most the nominal 100 GB/s"
    assert str(caught.value) == message
