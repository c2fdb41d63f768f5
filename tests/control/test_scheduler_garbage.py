import gc
from random import Random

import pytest
from world import World

from rollart.control.rules import MODES, Batching, Redundancy, Rules


@pytest.mark.parametrize("mode", MODES.values(), ids=list(MODES))
def test_a_scheduler_leaves_no_cycles_for_the_garbage_collector(mode):
    rules = Rules(
        steps=5,
        mode=mode,
        batching=Batching(groups_per_step=2, group_size=3),
        redundancy=Redundancy(extra_groups=1, extra_members=1),
    )
    gc.collect()
    gc.disable()
    try:
        world = World(rules=rules, random=Random(1), failure_rate=0.1, scored_by_env=0.5)
        world.run()
        assert gc.collect() == 0
    finally:
        gc.enable()
