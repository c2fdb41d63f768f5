import asyncio
import contextlib
import os
import signal
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from conditions import BOUND_S, until
from serverless_calls import FILE, attempt, call

from rollart.control.autoscaling import Scaling
from rollart.errors import ConfigError, ScoreError
from rollart.rewards.invoke.options import CallLimits
from rollart.rewards.invoke.pool import LocalInvoker
from rollart.types import Reward

QUICK = CallLimits(timeout_s=1.0)
"""For calls that never return."""
PATIENT = CallLimits(timeout_s=2 * BOUND_S, memory_bytes=256 * 2**20)


@asynccontextmanager
async def opened(scaling: Scaling | None = None, limits: CallLimits | None = None):
    invoker = LocalInvoker(scaling or Scaling(max_instances=2), limits=limits)
    try:
        yield invoker
    finally:
        await invoker.close()


def is_alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


async def until_gone(pid: int) -> None:
    """Wait until a process has ended; whoever inherited it may not have reaped it yet."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        await until(lambda: "State:\tZ" in Path(f"/proc/{pid}/status").read_text())


async def test_calls_are_scored_in_processes_and_idle_ones_go_to_zero():
    async with opened(Scaling(max_instances=2, idle_s=1.0)) as invoker:
        (first,) = await invoker.invoke(call("process"))
        (second,) = await invoker.invoke(call("process"))
        assert first == second
        assert first.value != os.getpid()
        await until(lambda: not invoker.stats()["instances"])
        (third,) = await invoker.invoke(call("process"))
        assert third != first
        stats = invoker.stats()
    assert not is_alive(int(first.value))
    assert stats["cold_starts"] == 2
    assert stats["cold_start_s"] > 0
    assert 0 < stats["utilisation"] < 1


async def test_parts_and_groups_come_back_whole():
    async with opened() as invoker:
        assert await invoker.invoke(call("parted")) == (
            Reward(value=0.1 + 0.2, parts={"a": 0.1, "b": 0.2}),
        )
        group = call("ranks", attempt("a"), attempt("b"), is_group=True)
        assert await invoker.invoke(group) == (Reward(value=0.0), Reward(value=1.0))


async def test_one_instance_runs_as_many_calls_at_once_as_it_may(tmp_path: Path):
    door = tmp_path / "door"
    async with opened(Scaling(max_instances=1, concurrency=3), PATIENT) as invoker:
        calls = [call(each, door=str(door)) for each in ("awaits", "waits", "awaits")]
        running = [asyncio.create_task(invoker.invoke(each)) for each in calls]
        await until(lambda: invoker.stats()["running"] == 3)
        door.touch()
        assert await asyncio.gather(*running) == [(Reward(value=1.0),)] * 3
        assert invoker.stats()["cold_starts"] == 1


async def test_what_a_function_left_to_be_done_is_done_between_calls():
    async with opened(Scaling(max_instances=1)) as invoker:
        assert await invoker.invoke(call("leaves_work")) == (Reward(value=0.0),)
        async with asyncio.timeout(BOUND_S):  # or the event loop stands still between calls
            while not (await invoker.invoke(call("leaves_work")))[0].value:
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_function_that_breaks_its_event_loop_ends_its_instance(concurrency: int):
    async with opened(Scaling(max_instances=1, concurrency=concurrency)) as invoker:
        with pytest.raises(ScoreError, match="KeyboardInterrupt"):
            await invoker.invoke(call("interrupts"))
        assert await invoker.invoke(call("turns")) == (Reward(value=1.0),)


@pytest.mark.parametrize(
    ("function", "reason", "is_final"),
    [
        ("raises", "raised RuntimeError: no grader here", False),
        ("not_a_number", "returned nan (float); wanted a finite number or a Reward", True),
        ("nothing", "returned None (NoneType); wanted a finite number or a Reward", True),
        ("a_string", "returned '1.0' (str); wanted a finite number or a Reward", True),
        ("prints_a_gigabyte", "it printed more than 1048576 bytes: print less", True),
        ("exits", "raised SystemExit: 3", False),
        ("never_returns", "no answer within 1 s; its instance was killed", False),
        ("writes_a_gigabyte", "it printed more than 16777216 bytes and was killed", False),
        ("leaves", "its instance exited with code 7; last output: last words", False),
        ("eats_memory", "more memory than the 256 MiB an instance may hold", False),
        ("no_such_function", "has no function no_such_function", True),
    ],
)
async def test_a_bad_function_is_a_clear_reason_and_the_next_call_is_scored(
    function: str, reason: str, is_final: bool, capfd: pytest.CaptureFixture[str]
):
    limits = QUICK if function == "never_returns" else PATIENT
    async with opened(Scaling(max_instances=1), limits) as invoker:
        with pytest.raises(ScoreError) as error:
            await invoker.invoke(call(function))
        invoker._limits = PATIENT
        assert await invoker.invoke(call("turns")) == (Reward(value=1.0),)
    assert f"{FILE}:{function}" in str(error.value)
    assert reason in str(error.value)
    assert error.value.is_final is is_final
    assert capfd.readouterr() == ("", "")


async def test_a_list_of_the_wrong_length_is_a_clear_reason():
    async with opened(Scaling(max_instances=1)) as invoker:
        with pytest.raises(ScoreError, match=r"returned \[1.0\] \(list of length 1\); wanted a li"):
            await invoker.invoke(call("too_few", attempt("a"), attempt("b"), is_group=True))


async def test_calls_beside_one_that_takes_too_long_fail_with_a_reason_of_their_own():
    async with opened(Scaling(max_instances=1, concurrency=2), PATIENT) as invoker:
        await invoker.invoke(call("turns"))
        hung = asyncio.create_task(invoker.invoke(call("never_returns")))
        await until(lambda: invoker.stats()["running"] == 1)
        beside = asyncio.create_task(invoker.invoke(call("never_returns")))
        await until(lambda: invoker.stats()["running"] == 2)
        expire_first(invoker)
        with pytest.raises(ScoreError, match="no answer within 1 s"):
            await hung
        with pytest.raises(ScoreError, match="killed: another call took too long"):
            await beside


def expire_first(invoker: LocalInvoker) -> None:
    """Let the time of the first call be up that runs."""
    invoker._limits = QUICK
    timer = next(iter(invoker._calls.values())).timer
    assert timer is not None
    timer._run()
    timer.cancel()


async def test_what_a_killed_function_started_is_killed_with_it(tmp_path: Path):
    script = tmp_path / "spawns.py"
    script.write_text(
        "import subprocess, time, pathlib\n"
        "def score(trajectory, *, note):\n"
        "    child = subprocess.Popen(['sleep', '1000'])\n"
        "    pathlib.Path(note).write_text(str(child.pid))\n"
        "    time.sleep(1000)\n"
    )
    note = tmp_path / "pid"
    async with opened(limits=PATIENT) as invoker:
        hung = asyncio.create_task(invoker.invoke(call(f"{script}:score", note=str(note))))
        await until(lambda: note.exists() and note.read_text())
        expire_first(invoker)
        with pytest.raises(ScoreError, match="no answer within"):
            await hung
        await until_gone(int(note.read_text()))


async def test_a_child_that_escapes_with_the_socket_keeps_no_call_waiting(tmp_path: Path):
    script = tmp_path / "escapes.py"
    script.write_text(
        "import os, time, pathlib\n"
        "def score(trajectory, *, note):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        pathlib.Path(note).write_text(str(os.getpid()))\n"
        "    time.sleep(1000)\n"
    )
    note = tmp_path / "pid"
    async with opened(limits=PATIENT) as invoker:
        hung = asyncio.create_task(invoker.invoke(call(f"{script}:score", note=str(note))))
        await until(lambda: note.exists() and note.read_text())
        expire_first(invoker)
        with pytest.raises(ScoreError, match="no answer within"):
            await hung
    os.kill(int(note.read_text()), signal.SIGKILL)


async def test_a_caller_who_goes_away_frees_a_waiting_call_at_once_and_a_running_one_later(
    tmp_path: Path,
):
    door = tmp_path / "door"
    async with opened(Scaling(max_instances=1, queue_limit=1), PATIENT) as invoker:
        running = asyncio.create_task(invoker.invoke(call("waits", door=str(door))))
        await until(lambda: invoker.stats()["running"])
        waiting = asyncio.create_task(invoker.invoke(call("turns")))
        await asyncio.sleep(0)
        with pytest.raises(ScoreError, match="1 calls wait already"):
            await invoker.invoke(call("turns"))
        for task in (running, waiting):
            task.cancel()
        await asyncio.wait({running, waiting})
        assert (invoker.stats()["running"], invoker.stats()["waiting"]) == (1, 0)
        door.touch()
        assert await invoker.invoke(call("turns")) == (Reward(value=1.0),)
        assert invoker.stats()["cold_starts"] == 1


async def test_closing_fails_what_waits_and_leaves_no_process():
    async with opened() as invoker:
        (pid,) = await invoker.invoke(call("process"))
        hung = asyncio.create_task(invoker.invoke(call("never_returns")))
        await until(lambda: invoker.stats()["running"])
    with pytest.raises(ScoreError, match="the local invoker was closed"):
        await hung
    assert not is_alive(int(pid.value))
    with pytest.raises(ScoreError, match="the local invoker is closed"):
        await invoker.invoke(call("turns"))


async def test_instances_die_with_their_parent(tmp_path: Path):
    note = tmp_path / "pid"
    script = tmp_path / "parent.py"
    script.write_text(PARENT.format(file=FILE, note=note))
    (tmp_path / "noting.py").write_text(NOTING)
    process = await asyncio.create_subprocess_exec(sys.executable, str(script), cwd=tmp_path)
    await until(lambda: note.exists() and note.read_text())
    pid = int(note.read_text())
    assert is_alive(pid)
    process.kill()
    await process.wait()
    await until_gone(pid)


async def test_a_place_where_nothing_can_start_fails_each_call(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.executable", "/bin/false")
    async with opened(Scaling(max_instances=1)) as invoker:
        failures = await asyncio.gather(
            *(invoker.invoke(call("turns")) for _ in range(3)), return_exceptions=True
        )
    assert [str(each).partition(": ")[2] for each in failures] == [
        "its instance exited with code 1"
    ] * 3


async def test_a_call_too_large_is_refused():
    async with opened(limits=CallLimits(payload_bytes=100)) as invoker:
        with pytest.raises(ScoreError, match="bytes, more than 100") as error:
            await invoker.invoke(call("turns"))
    assert error.value.is_final


async def test_the_fewest_instances_are_there_before_the_first_call():
    async with opened(Scaling(max_instances=2, min_instances=1, idle_s=0.0)) as invoker:
        await invoker.warm()
        await until(lambda: invoker.stats()["cold_starts"])
        assert invoker.stats()["instances"] == 1


def test_limits_must_be_more_than_nothing():
    with pytest.raises(ConfigError, match=r"invoker.limits.timeout_s = 0: must be more than 0"):
        CallLimits(timeout_s=0)


NOTING = """
import os, pathlib, time
def score(trajectory, *, note):
    pathlib.Path(note).write_text(str(os.getpid()))
    time.sleep(1000)
"""
PARENT = """
import asyncio
from rollart.rewards.invoke.pool import LocalInvoker
from rollart.types import *
turn = Turn(prompt_tokens=(1,), tokens=(1,), logprobs=(0.0,), versions=(Version(0),),
            observation="", action="", reward=0.0)
trajectory = token_trajectory(id=TrajectoryId(1), group=GroupId(1), turns=(turn,), success=True,
    task=Task(id=1, env="e", domain="d", seed=0), stop="terminated", reward=0.0)
call = ScoreCall(function="noting:score", options={{"note": "{note}"}}, key="k",
                 trajectories=(trajectory,), is_group=False)
asyncio.run(LocalInvoker().invoke(call))
"""
