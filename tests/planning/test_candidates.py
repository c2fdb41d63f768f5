from dataclasses import replace

from planning_samples import H20, H800, NOWHERE_SPECIAL, make_plan, make_problem, make_rules

from rollart.planning.bounds import Bounds
from rollart.planning.candidates import divisions, find, neighbours
from rollart.planning.plan import PoolShare


def test_throughput_uses_every_gpu_in_whole_nodes():
    problem = make_problem(pools=(replace(H800, tp=1), replace(H20, tp=1, role="rollout")))
    plans = list(divisions(problem))
    assert [str(plan) for plan in plans] == [
        "8 h800 train, 16 h800 (tp 1) + 16 h20 (tp 1) roll out",
        "16 h800 train, 8 h800 (tp 1) + 16 h20 (tp 1) roll out",
        "24 h800 train, 16 h20 (tp 1) roll out",
    ]
    assert all(not plan.unused(problem) for plan in plans)
    assert all(plan.serves == NOWHERE_SPECIAL for plan in plans)


def test_a_pool_that_must_train_trains_whole():
    problem = make_problem(pools=(H800, replace(H20, role="train")))
    assert {(p.train.name, p.train_gpus) for p in divisions(problem)} == {("h20", 16)}


def test_cost_may_leave_gpus_unused():
    problem = make_problem(objective="cost")
    unused = [plan.unused(problem) for plan in divisions(problem)]
    assert {} in unused
    assert {"h20": 16} in unused
    assert {"h800": 8, "h20": 8} in unused


def test_every_alpha_asked_for_is_tried():
    problem = make_problem(alphas=(1, 2, 3))
    assert {(plan.alpha, plan.slots) for plan in divisions(problem)} == {(1, 64), (2, 96), (3, 128)}


def test_environments_are_limited_if_there_are_fewer():
    assert {plan.slots for plan in divisions(make_problem(most_slots=10))} == {10}


def test_candidates_differ_and_never_beat_the_least_bound():
    bounds = Bounds(make_problem())
    found = find(bounds, most=20)
    assert len({plan.key for plan in found.plans}) == len(found.plans) == 20
    assert all(bounds.of(plan).step_s >= found.least * (1 - 1e-9) for plan in found.plans)


def test_no_plan_in_reach_has_a_bound_below_the_least():
    for problem in (make_problem(extra_groups=(0, 2, 4)), make_problem(objective="cost")):
        bounds = Bounds(problem)
        found = find(bounds, most=12)
        for plan in found.plans:
            for other in (plan, *neighbours(problem, plan)):
                step_s = bounds.of(other).step_s
                worth = problem.worth(step_s, hour_price=other.hour_price)
                assert worth >= found.least * (1 - 1e-9)


def test_what_is_no_candidate_is_kept_with_its_bound():
    bounds = Bounds(make_problem())
    few, all_ = find(bounds, most=5), find(bounds, most=10_000)
    assert len(few.plans) + len(few.rest) == len(all_.plans)
    assert [key for key, _ in few.rest] == [plan.key for plan in all_.plans[5:]]
    assert min(worth for _, worth in few.rest) >= few.least * (1 - 1e-9)


def test_one_node_is_divided_within():
    problem = make_problem(pools=(replace(H800, count=8, tp=1),))
    assert [str(plan) for plan in divisions(problem)] == [
        "2 h800 train, 6 h800 (tp 1) roll out",
        "4 h800 train, 4 h800 (tp 1) roll out",
    ]


def test_gpus_too_few_for_another_engine_are_idle():
    problem = make_problem(pools=(replace(H800, count=8, tp=4),))
    first, second = divisions(problem)
    assert (first.idle, second.idle) == ({"h800": 2}, {})


def test_a_mode_without_affinity_gets_no_tables():
    found = find(Bounds(make_problem(rules=make_rules("areal"))), most=200)
    assert all(plan.serves == NOWHERE_SPECIAL for plan in found.plans)


def test_large_clusters_are_tried_in_even_steps():
    problem = make_problem(pools=(replace(H800, count=8000, tp=1),))
    counts = [plan.train_gpus for plan in divisions(problem)]
    assert len(counts) <= 24
    assert (counts[0], counts[-1]) == (8, 7656)


def test_neighbours_differ_in_one_decision():
    problem = make_problem(extra_groups=(0, 2))
    plan = make_plan()
    others = list(neighbours(problem, plan))
    assert len({other.key for other in others} | {plan.key}) == len(others) + 1
    assert {other.train_gpus for other in others} == {8, 16}
    assert replace(plan, serves={"reader": "", "writer": "h20"}) in others
    assert replace(plan, extra_groups=2, slots=72) in others
    split = PoolShare(pool=H800, gpus=16, tp=1, prefill=1, decode=1)
    assert replace(plan, rollout=(split, plan.rollout[1])) in others


def test_a_fixed_split_of_prefill_and_decode_stays():
    pools = (replace(H800, prefill=1, decode=1), H20)
    problem = make_problem(pools=pools)
    for plan in divisions(problem):
        assert all(s.prefill == s.pool.prefill for s in plan.rollout)
    plan = next(p for p in divisions(problem) if len(p.rollout) == 2 and p.rollout[0].engines)
    assert all(
        s.prefill == 1 for other in neighbours(problem, plan) for s in other.rollout[:1]
        if s.pool.name == "h800"
    )  # fmt: skip


def test_prefill_and_decode_stay_together_where_they_must():
    others = neighbours(make_problem(may_split=False), make_plan())
    assert not any(share.is_split for other in others for share in other.rollout)
