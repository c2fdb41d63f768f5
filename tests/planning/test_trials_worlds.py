from dataclasses import replace

import pytest
from planning_samples import H20, H800, make_plan, make_problem, make_rules

from rollart.control.lending import Lending
from rollart.errors import ConfigError
from rollart.planning.bounds import Bounds
from rollart.planning.plan import PoolShare
from rollart.planning.trials import Scale, TrialRunner, make_world
from rollart.sim.loop import Loop


def test_a_likeness_has_a_part_of_everything():
    world = make_world(make_problem(), make_plan(), scale=Scale(attempts=16, steps=3, skip=1))
    assert world.rules.batching.groups_per_step == 4
    assert world.rules.steps == 3
    assert world.slots == 32
    assert len(world.make_engines(Loop())) == 16
    assert world.routing.affinity == {"reader": ("h800", "h20"), "writer": ("h20", "h800")}


def test_a_problem_that_is_small_enough_is_simulated_whole():
    world = make_world(make_problem(), make_plan(), scale=Scale(attempts=512, steps=3, skip=1))
    assert (world.rules.batching.groups_per_step, world.slots) == (8, 64)
    assert len(world.make_engines(Loop())) == 32


def test_engines_that_do_not_divide_evenly_keep_their_speed_together():
    plan = make_plan(
        train_gpus=16,
        rollout=(PoolShare(pool=H20, gpus=12, tp=4),),
        serves={"reader": "h20", "writer": "h20"},
    )
    runner = TrialRunner(Bounds(make_problem()), events=0)
    trial = runner.trial(plan)
    whole = runner.run(trial, Scale(attempts=32, steps=12, skip=2)).step_s
    half = runner.run(trial, Scale(attempts=16, steps=12, skip=2)).step_s
    assert half == pytest.approx(whole, rel=0.25)


def test_a_likeness_lends_what_the_whole_would():
    rules = replace(make_rules(), lending=Lending(enabled=True))
    plan = make_plan(rollout=(PoolShare(pool=H20, gpus=16, tp=1),), serves={"reader": "h20"})
    whole, part = (
        make_world(make_problem(rules=rules), plan, scale=Scale(attempts=n, steps=1, skip=0))
        for n in (32, 8)
    )
    assert part.durations.recall_s() == whole.durations.recall_s()
    assert part.durations.lend_s() == whole.durations.lend_s()
    engines = [
        [member.engine.id for member in world.make_engines(Loop()) if member.lent]
        for world in (whole, part)
    ]
    assert [len(each) for each in engines] == [8, 2]


def test_a_likeness_too_small_for_a_lent_engine_keeps_one():
    rules = replace(make_rules(), lending=Lending(enabled=True))
    problem = make_problem(rules=rules, pools=(replace(H800, tp=4), H20))
    plan = make_plan(rollout=(PoolShare(pool=H20, gpus=16, tp=1),), train=problem.pools[0])
    world = make_world(problem, plan, scale=Scale(attempts=8, steps=1, skip=0))
    assert len([member for member in world.make_engines(Loop()) if member.lent]) == 1


def test_lending_hardware_that_holds_no_engine_is_refused():
    small = replace(H800, gpu=replace(H800.gpu, memory_gb=12.0), count=64, tp=1, role="train")
    rules = replace(make_rules(), lending=Lending(enabled=True))
    with pytest.raises(ConfigError, match=r"lending.enabled = True: Qwen3-8B fits on no engine of"):
        make_problem(rules=rules, pools=(small, H20))
