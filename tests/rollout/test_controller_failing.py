"""A run whose ground is gone ends at once, with the reason."""

import pytest
from live_parts import HeldTrainer, InlineCountdown, Live

from rollart.control.rules import Batching, Rules
from rollart.errors import ClusterError, UserError
from rollart.events import StepFinished, Train
from rollart.rollout.controller import Controller


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


class Releasing(Controller):
    """Lets the trainer end its step when the run has ended."""

    async def run(self, *args, **options):
        try:
            await super().run(*args, **options)
        finally:
            HeldTrainer.released.set()


@pytest.fixture(autouse=True)
def _releasing(monkeypatch):
    monkeypatch.setattr("live_parts.Controller", Releasing)


def fail_amid_step(tmp_path, error, *, is_awaited):
    """Let a run fail while the trainer is amid a step, which ends if the run waits for it."""
    HeldTrainer.version = 2
    HeldTrainer.released.clear()

    def watch(live, _event):
        if any(isinstance(command, Train) and command.version == 2 for command in live.seen[-1][1]):
            live.controller.fail(error)
            if is_awaited:
                HeldTrainer.released.set()

    live = Live(
        rules=Rules(steps=50, batching=Batching(groups_per_step=1, group_size=2)),
        directory=tmp_path,
        make=lambda _slot: InlineCountdown(),
        trainer="live_parts:HeldTrainer",
        watch=watch,
    )
    with pytest.raises(type(error), match=str(error)):
        live.run()
    return live


def test_a_run_that_fails_takes_in_the_step_under_way_so_that_it_can_be_saved(tmp_path):
    live = fail_amid_step(tmp_path, UserError("the store is full"), is_awaited=True)
    assert (live.controller.scheduler.optimizer, live.controller.stepping.is_under_way) == (
        3,
        False,
    )
    assert isinstance(live.seen[-1][0], StepFinished)


def test_nothing_is_waited_for_where_the_cluster_is_gone(tmp_path):
    live = fail_amid_step(tmp_path, ClusterError("the cluster is gone"), is_awaited=False)
    assert (live.controller.scheduler.optimizer, live.controller.stepping.is_under_way) == (2, True)
