"""Real runs whose trainer is several ranks, or trains adapters."""

import asyncio
import json
from contextlib import AsyncExitStack

import numpy as np
import pytest
from safetensors.numpy import load_file

from rollart.cluster.deployment import open_engines, open_trainer, open_weights
from rollart.inference.driver import EngineDriver
from rollart.observe.replay import replay
from rollart.observe.trackers import read_rows
from rollart.pipelines.agentic import train
from rollart.pipelines.start_model import prepare_model
from rollart.training.batch import encode
from rollart.types import (
    Completion,
    GroupId,
    Request,
    Sampling,
    Task,
    TrajectoryId,
    Turn,
    Version,
    token_trajectory,
)

EXACT = 1e-4
"""The project's bound on the difference between an engine's log-probs and the trainer's."""
NAMES = ("trainer/loss", "trainer/grad_norm", "trainer/entropy", "trained_tokens", "reward_mean")


def steps_of(directory):
    rows = read_rows(directory / "metrics.jsonl")
    return [row for row in rows if "trainer/loss" in row]


def test_a_run_of_two_ranks_learns_as_one_and_loses_nothing(small, runs):
    assert train(small("one", "weights.store='memory'")) == 0
    assert train(small("two", "training.ranks=2", "run.checkpoint_every=2")) == 0
    one, two = steps_of(runs / "one"), steps_of(runs / "two")
    for name in NAMES:
        assert two[0][name] == pytest.approx(one[0][name], rel=1e-5, abs=1e-5), name
    assert [row["trainer/logprob_difference"] < EXACT for row in two] == [True, True]
    proof = replay(runs / "two")
    assert proof["ended"] == {"trained": 16}
    assert (proof["open"], proof["lost"], proof["trained_twice"]) == (0, 0, 0)
    checkpoint = runs / "two" / "checkpoints" / "step-000002"
    assert len(list(checkpoint.glob("model-*.safetensors"))) == 2
    goes_on = small("on", "weights.store='memory'", "run.steps=3")
    assert train(goes_on, resume=checkpoint) == 0
    assert json.loads((runs / "on" / "summary.json").read_text())["steps"] == 3
    assert steps_of(runs / "on")[-1]["trainer/logprob_difference"] < EXACT


def test_a_run_on_adapters_serves_what_it_trains(small, runs):
    options = ["training.ranks=2", "training.lora.rank=4", "run.steps=3", "run.checkpoint_every=3"]
    assert train(small("adapters", *options)) == 0
    rows = steps_of(runs / "adapters")
    assert [row["trainer/logprob_difference"] < EXACT for row in rows] == [True] * 3
    last = runs / "adapters" / "checkpoints" / "step-000003"
    matrices = load_file(last / "adapter" / "adapter_model.safetensors")
    assert all(value.any() for name, value in matrices.items() if "lora_B" in name)


async def ask(proxy: EngineDriver, session: int) -> Completion:
    request = Request(
        session=TrajectoryId(session),
        turn=0,
        domain="test",
        tokens=(5, 6, 7, 8 + session % 4),
        sampling=Sampling(max_tokens=12),
        stop=(),
        seed=session % 4,
    )
    return await proxy.generate(request)


def as_batch(done: list[Completion]) -> dict[str, np.ndarray]:
    """Return completions as one group, every second one praised."""
    group = [
        token_trajectory(
            id=TrajectoryId(number),
            group=GroupId(0),
            task=Task(id=0, env="test", domain="test", seed=0),
            turns=(
                Turn(
                    prompt_tokens=(5, 6, 7, 8 + number % 4),
                    tokens=each.tokens,
                    logprobs=each.logprobs,
                    versions=each.versions,
                    observation="",
                    action="",
                    reward=0.0,
                ),
            ),
            stop="terminated",
            success=False,
            reward=float(number % 2),
        )
        for number, each in enumerate(done)
    ]
    return encode([group], temperature=1.0)


def test_a_step_on_adapters_changes_what_a_live_engine_says_to_what_the_trainer_computes(small):
    config = small("live", "training.lora.rank=4", "weights.store='memory'")
    model = prepare_model(config, lambda _text: None)

    async def scenario() -> tuple[list[list[Completion]], list[float]]:
        async with AsyncExitStack() as stack:
            store, opening = stack.enter_context(open_weights(config))
            trainer = await stack.enter_async_context(
                open_trainer(config, model=model, store=opening)
            )
            opened = open_engines(config, model=model, version=Version(0), store=store)
            engines = await stack.enter_async_context(opened)
            (proxy,) = engines.proxies.values()
            said: list[list[Completion]] = []
            differences: list[float] = []
            for version in (1, 2):
                first = 4 * len(said)
                done = await asyncio.gather(*(ask(proxy, first + each) for each in range(4)))
                said.append(list(done))
                report = await trainer.step(as_batch(said[-1]))
                differences.append(report.metrics["logprob_difference"])
                assert await trainer.publish() == version
                await proxy.suspend()
                await proxy.update(Version(version))
                await proxy.resume()
            return said, differences

    (before, after), differences = asyncio.run(scenario())
    assert max(differences) < EXACT
    assert {version for each in after for version in each.versions} == {1}
    firsts = [(one.logprobs[0], two.logprobs[0]) for one, two in zip(before, after, strict=True)]
    assert any(abs(one - two) > 100 * EXACT for one, two in firsts)
