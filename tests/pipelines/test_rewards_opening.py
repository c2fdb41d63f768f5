"""What is seen to, and started, before the first trajectory is scored."""

import asyncio
from pathlib import Path

import pytest

from rollart.config import Config, TaskOptions
from rollart.config.options import RewardPart
from rollart.control.autoscaling import Scaling
from rollart.errors import ConfigError
from rollart.pipelines import rewards as build
from rollart.pipelines.rewards import open_rewards
from rollart.rewards.context import SET_UP_VARIABLE
from rollart.rewards.invoke.options import InvokerOptions
from rollart.sandbox.options import SandboxOptions


def config(part: RewardPart, **options) -> Config:
    task = TaskOptions(env="frozen_lake", rewards={"one": part})
    return Config(tasks={"lake": task}, rewards=InvokerOptions(**options))


def summed(function: str, **options) -> RewardPart:
    terms = [{"function": "exact"}, {"function": function, "options": options}]
    return RewardPart(function="weighted", options={"terms": terms})


def opened(config: Config, directory: Path) -> tuple[dict[str, float], list[str]]:
    """Return what the invoker shows before any call, and what was said."""
    said: list[str] = []

    async def go() -> dict[str, float]:
        async with open_rewards(
            config, directory=directory, say=said.append, warn=said.append
        ) as rewards:
            return dict(rewards.stats())

    return asyncio.run(go()), said


def test_the_fewest_instances_are_started_before_the_first_call(tmp_path):
    scaling = Scaling(min_instances=2, max_instances=3)
    stats, _ = opened(config(RewardPart(function="exact"), scaling=scaling), tmp_path)
    assert stats["instances"] == 2
    stats, _ = opened(config(RewardPart(function="exact")), tmp_path)
    assert stats["instances"] == 0


def test_the_pool_of_a_judge_within_a_sum_is_told(tmp_path):
    part = summed("judge", judge={"base_url": "http://127.0.0.1:9/v1"})
    _, said = opened(config(part), tmp_path)
    asks = "asks judge http://127.0.0.1:9/v1, 8 questions at once in each process"
    assert said == [f"reward lake/one: weighted by local, {asks}"]


@pytest.mark.parametrize(
    "make", [summed, lambda name, **given: RewardPart(function=name, options=given)]
)
def test_an_engine_no_process_offers_is_refused_unless_the_user_sets_them_up(
    make, tmp_path, monkeypatch
):
    monkeypatch.delenv(SET_UP_VARIABLE, raising=False)
    part = make("judge", judge={"engine": "critic"})
    with pytest.raises(ConfigError) as caught:
        opened(config(part), tmp_path)
    wanted = "tasks.lake.rewards.one.options.judge.engine = 'critic': a run offers judges no engine"
    assert str(caught.value).startswith(wanted)
    opened(config(part, kind="http", url="http://127.0.0.1:9/"), tmp_path)
    monkeypatch.setenv(SET_UP_VARIABLE, "anything:set_up")
    opened(config(part), tmp_path)


def test_a_sandbox_is_looked_for_where_a_sum_runs_programs(tmp_path, monkeypatch):
    monkeypatch.delenv(SET_UP_VARIABLE, raising=False)

    async def missing(_options: SandboxOptions) -> None:
        raise ConfigError("sandbox.kind", "bubblewrap", "bwrap is not installed")

    monkeypatch.setattr(build, "try_sandbox", missing)
    with pytest.raises(ConfigError, match="bwrap is not installed"):
        opened(config(summed("unit_tests")), tmp_path)
    opened(config(summed("length", limit=3)), tmp_path)
