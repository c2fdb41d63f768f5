"""The roofline, written out by hand."""

from dataclasses import replace

import pytest

from rollart.config.simulation import Constants
from rollart.errors import ConfigError
from rollart.hardware.gpus import gpu_named
from rollart.hardware.models import model_named
from rollart.sim.costs import EngineCosts, TrainCosts

SMALL, MIXED = model_named("Qwen3-8B"), model_named("Qwen3-30B-A3B")
H800, H20 = gpu_named("H800"), gpu_named("H20")
CONSTANTS = Constants(
    prefill_utilisation=0.5, decode_utilisation=0.8, step_overhead_s=0.003, memory_share=0.9
)


def costs(model=SMALL, gpu=H800, tp=1) -> EngineCosts:
    return EngineCosts(model=model, gpu=gpu, tp=tp, constants=CONSTANTS)


def reduce_s(model, gpu, tp: int, tokens: int) -> float:
    """Two ring all-reduces per layer, each moving 2 (tp − 1) / tp of the activations."""
    activations = model.hidden * 2 * tokens
    return 2 * model.layers * 2 * (tp - 1) / tp * activations / (gpu.nvlink_gb_s / 2 * 1e9)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_prefill_is_arithmetic_attention_and_all_reduces(tp):
    flops = tp * H800.dense_tflops * 1e12 * 0.5
    tokens, cached = 1000, 4000
    dense = tokens * 2 * SMALL.active_parameters * 1e9
    pairs = tokens * cached + tokens * tokens / 2
    attention = 4 * SMALL.layers * SMALL.heads * SMALL.head_dim * pairs
    expected = (dense + attention) / flops + reduce_s(SMALL, H800, tp, tokens)
    assert costs(tp=tp).prefill_s(tokens, cached=cached) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_decode_step_reads_the_weights_and_every_cache(tp):
    bandwidth = tp * H800.hbm_tb_s * 1e12 * 0.8
    read = SMALL.weight_bytes + 50_000 * SMALL.kv_bytes_per_token
    expected = read / bandwidth + 0.003 + reduce_s(SMALL, H800, tp, 8)
    assert costs(tp=tp).decode_s(8, cached=50_000) == pytest.approx(expected, rel=1e-12)


def test_a_large_batch_on_a_gpu_poor_in_arithmetic_is_bound_by_arithmetic():
    expected = 200 * 2 * SMALL.active_parameters * 1e9 / (H20.dense_tflops * 1e12 * 0.5) + 0.003
    assert costs(gpu=H20).decode_s(200, cached=0) == pytest.approx(expected, rel=1e-12)


def test_a_mixture_reads_only_the_experts_somebody_chose():
    one, many = (costs(MIXED).decode_s(n, cached=0) - 0.003 for n in (1, 400))
    bandwidth = H800.hbm_tb_s * 1e12 * 0.8
    assert one == pytest.approx(MIXED.active_parameters * 2e9 / bandwidth, rel=0.01)
    assert many == pytest.approx(MIXED.weight_bytes / bandwidth, rel=0.01)


def test_costs_do_not_depend_on_what_was_asked_before():
    asked = costs(MIXED)
    asked.decode_s(300, cached=9.0)
    assert asked.decode_s(3, cached=5.0) == costs(MIXED).decode_s(3, cached=5.0)


def test_what_the_weights_leave_of_the_memory_holds_the_caches():
    room = 2 * H800.memory_gb * 1e9 * 0.9 - SMALL.weight_bytes
    assert costs(tp=2).capacity_tokens == int(room / SMALL.kv_bytes_per_token)


def test_more_gpus_than_key_heads_hold_some_of_them_twice():
    wide = replace(SMALL, kv_heads=2)
    room = 8 * H800.memory_gb * 1e9 * 0.9 - SMALL.weight_bytes
    assert costs(wide, tp=8).capacity_tokens == int(room / (4 * wide.kv_bytes_per_token))
    assert costs(wide, tp=8).cache_token_s == costs(wide, tp=2).cache_token_s
    assert costs(wide, tp=2).cache_token_s == costs(wide, tp=1).cache_token_s / 2


def test_a_gpu_without_nvlink_reduces_over_pcie():
    card = replace(H800, nvlink_gb_s=0.0)
    slow, fast = costs(gpu=card, tp=2), costs(tp=2)
    assert slow.decode_s(8, cached=0) > fast.decode_s(8, cached=0)


def test_a_model_that_does_not_fit_is_refused_with_sizes():
    with pytest.raises(ConfigError, match="needs 470 GB for its weights, 4 × H800 has 320 GB"):
        costs(model_named("Qwen3-235B-A22B"), tp=4)


def test_an_optimizer_step_is_three_passes_and_what_is_fixed():
    train = TrainCosts(model=SMALL, gpu=H800, gpus=32, constants=CONSTANTS)
    flops = 6 * SMALL.active_parameters * 1e9 * 1e6
    rate = 32 * H800.dense_tflops * 1e12 * CONSTANTS.train_utilisation
    assert train.step_s(1e6) - train.step_s(0) == pytest.approx(flops / rate)
