from dataclasses import replace

import pytest
from planning_samples import H20, H800, READER, WRITER, make_problem

from rollart.errors import ConfigError, UserError
from rollart.hardware.gpus import gpu_named
from rollart.hardware.models import model_named
from rollart.planning.problem import Pool


def refusal(**changes) -> str:
    with pytest.raises(UserError) as caught:
        make_problem(**changes)
    return str(caught.value)


def test_without_hardware_there_is_nothing_to_plan():
    assert "name the hardware" in refusal(pools=())


def test_a_pool_without_gpus_is_refused():
    with pytest.raises(ConfigError, match=r"pools.h800.count = 0: must be at least 1"):
        replace(H800, count=0)


def test_some_pool_must_be_free_to_train():
    pools = (replace(H800, role="rollout"), replace(H20, role="rollout"))
    assert "no GPU is left for training" in refusal(pools=pools)


def test_some_pool_must_be_free_to_roll_out():
    assert "no GPU is left to roll out" in refusal(pools=(replace(H800, role="train"),))


def test_one_pool_trains_at_most():
    pools = (replace(H800, role="train"), replace(H20, role="train"))
    assert refusal(pools=pools).startswith("pools.h20.role = 'train': only one pool can train")


def test_a_model_too_large_to_train_is_refused_with_what_it_needs():
    message = refusal(model=model_named("Qwen3-235B-A22B"))
    assert message.startswith("Qwen3-235B-A22B cannot be trained on any pool")
    assert "h800 has 1,920, h20 has 1,536" in message


def test_a_model_that_fits_on_no_pool_is_refused_with_what_it_needs():
    small = Pool(name="a10", gpu=gpu_named("A10"), count=8, role="rollout")
    pools = (replace(H800, role="train"), small)
    message = refusal(
        model=model_named("Qwen3-235B-A22B"), pools=(replace(pools[0], count=96), small)
    )
    assert message.startswith("Qwen3-235B-A22B fits on no pool: an engine needs 470 GB")
    assert "a node of a10 has" in message
    fixed = (replace(H800, role="train"), replace(H20, role="rollout", tp=1))
    long = replace(READER, max_tokens=10_000_000)
    assert "(with pools.h20.tp = 1)" in refusal(pools=fixed, tasks=(long, WRITER))


def test_prices_are_given_for_all_pools_or_for_none():
    pools = (replace(H800, price=2.0), H20)
    assert refusal(pools=pools).startswith("pools.h20.price = 0.0: give every pool a price")
    priced = make_problem(pools=(replace(H800, price=2.0), replace(H20, price=1.5)))
    assert [pool.hour_price for pool in priced.pools] == [2.0, 1.5]
    assert [pool.hour_price for pool in make_problem().pools] == [2.85, 1.0]


def test_fewer_than_no_environments_are_refused():
    assert refusal(most_slots=-1) == "run.environments = -1: must be at least 1"


def test_training_takes_whole_nodes_or_everything():
    problem = make_problem(pools=(replace(H800, count=20), H20))
    assert problem.train_counts(problem.pools[0]) == (8, 16, 20)
    assert make_problem(pools=(replace(H800, role="train"), H20)).train_counts(
        replace(H800, role="train")
    ) == (24,)


def test_a_single_node_is_divided_in_powers_of_two():
    problem = make_problem(pools=(replace(H800, count=8),))
    assert problem.train_counts(problem.pools[0]) == (2, 4, 8)
    six = replace(H800, count=6)
    assert make_problem(pools=(six,)).train_counts(six) == (2, 4, 6)


def test_training_that_leaves_no_room_for_an_engine_is_refused():
    assert refusal(model=model_named("Qwen3-32B"), pools=(replace(H800, count=8),)) == (
        "pools.h800.count = 8: Qwen3-32B needs 8 of them to train, and the rest is too small "
        "for an engine of 2 GPUs: raise count or add a pool"
    )
    split = replace(H20, count=2, role="rollout", prefill=1, decode=3)
    assert refusal(pools=(replace(H800, role="train"), split)) == (
        "pools.h20.count = 2: must hold at least one engine, or unit of engines, of 4 GPUs"
    )


def test_tensor_parallelism_must_divide_the_heads():
    assert refusal(pools=(replace(H800, tp=3), H20)) == (
        "pools.h800.tp = 3: must divide the 32 attention heads of Qwen3-8B: take 1, 2, 4, 8, 16"
    )


def test_engines_have_room_for_the_weights_and_the_longest_episode():
    assert make_problem().tps(H800) == (1, 2, 4, 8)
    assert make_problem(model=model_named("Qwen3-32B")).tps(H800) == (2, 4, 8)
    assert make_problem().tps(replace(H800, tp=4)) == (4,)


def test_heads_that_several_gpus_hold_take_room_more_than_once():
    long = replace(READER, max_tokens=4_000_000)
    few = replace(model_named("Qwen3-8B"), kv_heads=2)
    tight = make_problem(model=few, tasks=(long,), pools=(replace(H800, count=16), H20))
    assert tight.tps(H800) == ()
    assert tight.tps(H20) == (2, 4, 8)


def test_weights_cross_the_slowest_link_of_the_pools_that_roll_out():
    problem = make_problem()
    near, far = replace(H20, link="rdma_400g"), replace(H800, link="tcp_10g")
    assert problem.weights_link((near, far)) == "tcp_10g"
    assert problem.weights_link((near,)) == "rdma_400g"
    assert problem.weights_link((near, H800)) == "tcp_200g"


def test_the_objective_values_a_step_by_its_time_or_its_price():
    assert make_problem().worth(36.0, hour_price=100.0) == 36.0
    assert make_problem(objective="cost").worth(36.0, hour_price=100.0) == 1.0


def test_the_window_says_how_many_attempts_may_be_outstanding():
    problem = make_problem()
    assert problem.window_steps(alpha=1, extra_groups=4) == 2.5
    assert problem.most_attempts(alpha=2, extra_groups=1) == 100
