"""A run whose ground is gone ends at once, with the reason."""

import pytest
from live_parts import InlineCountdown, Live

from rollart.control.batching import Batching
from rollart.control.rules import Rules
from rollart.errors import UserError
from rollart.events import StepFinished


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
