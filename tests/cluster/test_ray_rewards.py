"""Reward functions as tasks of a Ray that runs on this machine."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import SUPPORT
from serverless_calls import call

from rollart.cluster.ray_rewards import RayInvoker
from rollart.errors import ConfigError, ScoreError
from rollart.rewards.invoke.options import InvokerOptions


def drive(directory: Path) -> subprocess.CompletedProcess[str]:
    """Run the trials in a process of their own, since Ray is one to a process."""
    return subprocess.run(
        [sys.executable, str(SUPPORT / "ray_driver.py"), str(directory)],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(SUPPORT), *sys.path])},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )


@pytest.fixture(scope="module")
def trials(tmp_path_factory) -> dict[str, str]:
    """What went wrong in each trial of the driver."""
    ended = drive(tmp_path_factory.mktemp("ray"))
    if "timed out during startup" in ended.stderr:  # Ray gives a busy machine 30 s, always
        ended = drive(tmp_path_factory.mktemp("ray"))
    assert ended.returncode == 0, ended.stderr[-3000:]
    lines = [json.loads(line) for line in ended.stdout.splitlines() if line.startswith("[")]
    return {name: wrong for name, wrong, _ in lines}


@pytest.mark.parametrize(
    "trial",
    [
        "keeps_the_contract",
        "gives_the_scores_of_every_other_way",
        "gives_a_reason_for_whatever_a_function_does",
        "is_tried_again_when_a_worker_is_killed",
        "is_a_reason_when_no_node_has_room",
        "ends_what_nobody_waits_for",
        "scores_a_whole_run",
    ],
)
def test_a_function_on_ray(trial, trials):
    assert trials[trial] == "", trials[trial]


def test_without_a_connection_there_is_a_reason():
    invoker = RayInvoker(InvokerOptions(kind="ray"))
    with pytest.raises(ScoreError, match="this process is connected to no Ray cluster"):
        asyncio.run(invoker.invoke(call("turns")))


@pytest.mark.parametrize(
    ("options", "field"),
    [({"cpus": -1.0}, "cpus"), ({"resources": {"fast": float("nan")}}, "resources.fast")],
)
def test_what_no_task_can_ask_for_is_named(options, field):
    with pytest.raises(ConfigError, match=rf"^invoker\.{field} = "):
        InvokerOptions(kind="ray", **options)
