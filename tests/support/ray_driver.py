"""Rewards through Ray, tried in a driver of its own: `python ray_driver.py DIRECTORY`.

One Ray of this machine serves all; what became of each trial is printed as a line of JSON.
"""

import asyncio
import json
import sys
import time
import traceback
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from contract_rewards import NAMES
from invoker_contract import keep_the_contract
from live_parts import Countdown, Live
from served_function import TOKEN, served
from serverless_calls import attempt, call

from rollart.cluster.ray_rewards import RayInvoker
from rollart.cluster.ray_session import connected
from rollart.config import Config, TaskOptions
from rollart.config.options import RayOptions, RewardPart
from rollart.control.autoscaling import Scaling
from rollart.control.rules import MODES, Batching, Filter, Rules
from rollart.errors import ScoreError
from rollart.observe.replay import replay
from rollart.pipelines.rewards import open_rewards
from rollart.rewards.invoke.factory import make_reliable
from rollart.rewards.invoke.http import HttpInvoker
from rollart.rewards.invoke.options import CallLimits, InvokerOptions, Reliability
from rollart.rewards.invoke.pool import LocalInvoker
from rollart.rewards.scoring import score
from rollart.types import Reward

HERE = Path(__file__).parent


def on_ray(*, timeout_s: float = 100.0, **options) -> InvokerOptions:
    limits = CallLimits(timeout_s=timeout_s, output_bytes=2**21)
    return InvokerOptions(
        kind="ray",
        **{"cpus": 0.5, "limits": limits, "scaling": Scaling(max_instances=2), **options},
    )


@asynccontextmanager
async def opened(invoker):
    try:
        yield invoker
    finally:
        await invoker.close()


async def refused(invoker, asked) -> tuple[str, bool]:
    with pytest.raises(ScoreError) as error:
        await invoker.invoke(asked)
    return str(error.value), error.value.is_final


async def keeps_the_contract(_directory: Path) -> None:
    async with opened(RayInvoker(on_ray())) as invoker:
        await keep_the_contract(invoker)
        stats = invoker.stats()
        assert stats["cold_starts"] >= 1
        assert stats["cold_start_s"] > 0
        assert (stats["running"], stats["instance_deaths"]) == (0, 0)


async def gives_the_scores_of_every_other_way(_directory: Path) -> None:
    calls = [
        call("contract_rewards:graded", attempt(*("ä b", "c") * n), scale=0.1 * n)
        for n in range(1, 8)
    ]
    group = [attempt("a" * n, number=n) for n in range(1, 6)]
    calls.append(call("contract_rewards:ranked", *group, is_group=True))
    functions = [f"contract_rewards:{name}" for name in NAMES]
    async with served(*functions) as url:
        ways = [
            LocalInvoker(),
            HttpInvoker(url, token=TOKEN, limits=CallLimits(), connections=2),
            RayInvoker(on_ray()),
        ]
        directly = [await score(each) for each in calls]
        for invoker in ways:
            async with opened(invoker):
                assert await asyncio.gather(*map(invoker.invoke, calls)) == directly, invoker


async def gives_a_reason_for_whatever_a_function_does(_directory: Path) -> None:
    async with opened(RayInvoker(on_ray(timeout_s=3.0))) as invoker:
        words, final = await refused(invoker, call("never_returns"))
        assert "no answer within 3 s; its instance was killed" in words
        assert not final
    async with opened(RayInvoker(on_ray())) as invoker:
        await invoker.invoke(call("turns"))
        for name, reason, is_final in (
            ("raises", "raised RuntimeError: no grader here", False),
            ("not_a_number", "returned nan (float); wanted a finite number or a Reward", True),
            ("nothing", "returned None (NoneType); wanted a finite number", True),
            ("a_string", "returned '1.0' (str); wanted a finite number", True),
            ("prints_a_gigabyte", "it printed more than 1048576 bytes: print less", True),
            ("writes_a_gigabyte", "bytes and was killed: print less", False),
            ("leaves", "its instance exited with code 7; last output: last words", False),
        ):
            words, final = await refused(invoker, call(name))
            assert reason in words, (name, words)
            assert final is is_final, name
        words, _ = await refused(invoker, call("too_few", *[attempt("a")] * 2, is_group=True))
        assert "(list of length 1); wanted a list of 2, one for each trajectory" in words
        assert await invoker.invoke(call("turns")) == (Reward(value=1.0),)
        assert invoker.stats()["instance_deaths"] == 0


async def is_tried_again_when_a_worker_is_killed(directory: Path) -> None:
    options = on_ray(reliability=Reliability(attempts=3, backoff_s=0.01))
    lines = []
    async with opened(make_reliable(RayInvoker(options), options, on_call=lines.append)) as invoker:
        mark = str(directory / "mark")
        asked = call(f"{HERE / 'ray_functions.py'}:kills_its_worker", mark=mark)
        assert await invoker.invoke(asked) == (Reward(value=1.0),)
        assert invoker.stats()["instance_deaths"] == 1
    assert [(line.deliveries, line.failure) for line in lines] == [(2, "")]


async def is_a_reason_when_no_node_has_room(_directory: Path) -> None:
    limits = CallLimits(timeout_s=0.4, start_timeout_s=0.4, payload_bytes=2000)
    options = on_ray(resources={"nowhere": 1.0}, limits=limits)
    async with opened(RayInvoker(options)) as invoker:
        words, final = await refused(invoker, call("turns"))
        assert "its Ray task gave no answer within 0.8 s: no node has room for it" in words
        assert not final
        words, final = await refused(invoker, call("turns", attempt(*"a" * 100)))
        assert "bytes, more than 2000" in words
        assert final


async def ends_what_nobody_waits_for(directory: Path) -> None:
    log = directory / "pids"
    async with opened(RayInvoker(on_ray(timeout_s=600.0))) as invoker:
        asked = call(f"{HERE / 'ray_functions.py'}:tells_its_pid", log=str(log))
        task = asyncio.create_task(invoker.invoke(asked))
        while not log.exists() or not log.read_text():
            await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait({task})
        while Path(f"/proc/{log.read_text()}").exists():
            await asyncio.sleep(0.05)
        assert invoker.stats()["running"] == 0


async def scores_a_whole_run(directory: Path) -> None:
    part = RewardPart(function="contract_rewards:numbered")
    task = TaskOptions(env="countdown", rewards={"number": part})
    config = Config(
        tasks={"countdown": task},
        rewards=on_ray(reliability=Reliability(attempts=2)),
        ray=RayOptions(address="local"),  # the run's own cluster: connected already
    )
    live = Live(
        rules=Rules(
            steps=2,
            mode=MODES["rollart"],
            batching=Batching(groups_per_step=2, group_size=2),
            filter=Filter(drop_zero_variance=False),
        ),
        directory=directory / "run",
        make=lambda _slot: Countdown(turns=1),
        setup={"scoring": "each"},
    )
    said: list[str] = []
    async with open_rewards(
        config, directory=live.directory, say=said.append, warn=said.append
    ) as rewards:
        live.scorer = rewards.score
        await live._run()
        summary = rewards.summary({})
    assert said == ["reward countdown/number: contract_rewards:numbered by ray"]
    proof = replay(live.directory)
    assert (proof["same_commands"], proof["lost"], proof["trained_twice"]) == (True, 0, 0)
    assert proof["ended"]["trained"] == 8
    trained = [member for batch in live.batches for group in batch for member in group]
    assert [each.reward for each in trained] == [float(each.id % 3) for each in trained]
    assert summary["failed"] == 0
    lines = (live.directory / "rewards.jsonl").read_text().splitlines()
    assert {json.loads(line)["pool"] for line in lines} == {"ray"}


TRIALS = (
    keeps_the_contract,
    gives_the_scores_of_every_other_way,
    gives_a_reason_for_whatever_a_function_does,
    is_tried_again_when_a_worker_is_killed,
    is_a_reason_when_no_node_has_room,
    ends_what_nobody_waits_for,
    scores_a_whole_run,
)


def main() -> None:
    directory = Path(sys.argv[1])
    with connected("local"):
        for trial in TRIALS:
            begin = time.perf_counter()
            wrong = ""
            try:
                asyncio.run(asyncio.wait_for(trial(directory), 150))
            except BaseException:
                wrong = traceback.format_exc()
            took_s = time.perf_counter() - begin
            sys.stdout.write(json.dumps([trial.__name__, wrong, round(took_s, 2)]) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
