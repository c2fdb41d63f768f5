"""A run whose ground is gone ends at once, with the reason."""

import pytest
from live_parts import InlineCountdown, Live

from rollart.control.rules import Batching, Rules
from rollart.errors import ClusterError, UserError
from rollart.events import StepFinished, Train


def test_a_run_that_is_told_to_fail_ends_with_that_error(tmp_path):
    def watch(live, event):
        if isinstance(event, StepFinished):
            live.controller.fail(UserError("the cluster is gone"))

    live = Live(
        rules=Rules(steps=50, batching=Batching(groups_per_step=1, group_size=2)),
        directory=tmp_path,
        make=lambda _slot: InlineCountdown(),
        watch=watch,
    )
    with pytest.raises(UserError, match="the cluster is gone"):
        live.run()


def fail_amid_step(tmp_path, error):
    def watch(live, _event):
        if any(isinstance(command, Train) and command.version == 2 for command in live.seen[-1][1]):
            live.controller.fail(error)

    live = Live(
        rules=Rules(steps=50, batching=Batching(groups_per_step=1, group_size=2)),
        directory=tmp_path,
        make=lambda _slot: InlineCountdown(),
        step_s=0.05,
        watch=watch,
    )
    with pytest.raises(type(error), match=str(error)):
        live.run()
    return live


def test_a_run_that_fails_takes_in_the_step_under_way_so_that_it_can_be_saved(tmp_path):
    live = fail_amid_step(tmp_path, UserError("the store is full"))
    assert (live.controller.scheduler.optimizer, live.controller.stepping.is_under_way) == (
        3,
        False,
    )
    assert isinstance(live.seen[-1][0], StepFinished)


def test_nothing_is_waited_for_where_the_cluster_is_gone(tmp_path):
    live = fail_amid_step(tmp_path, ClusterError("the cluster is gone"))
    assert (live.controller.scheduler.optimizer, live.controller.stepping.is_under_way) == (2, True)
