"""The embedded host over real threads and real processes; the actors are in host_actors.py."""

import asyncio
import fcntl
import os
import signal
import subprocess
import sys
import termios
import textwrap
import threading
from array import array
from pathlib import Path

import numpy as np
import pytest
from checkout import SUPPORT
from conditions import BOUND_S, settled, until, wait_until

from rollart.cluster.local_host import EmbeddedHost, thread_env
from rollart.errors import (
    ActorDiedError,
    ActorError,
    ConfigError,
    InvariantError,
    RollartError,
    StorageError,
    UserError,
)
from rollart.serialization.codec import CodecError
from rollart.types import StepReport, Version

ECHO = "host_actors:Echo"
KILLED_S = 2.0
"""What a process gets that will not end, and then enough for its end once it is killed."""


@pytest.fixture(params=[False, True], ids=["in_process", "own_process"])
def own_process(request):
    return request.param


def with_actor(own_process, scenario, *, target=ECHO, options=None, **host_options):
    """Run an async scenario with one actor and close the host."""

    async def run():
        host = EmbeddedHost(**host_options)
        try:
            actor = await host.spawn(target, options or {}, own_process=own_process)
            return await asyncio.wait_for(scenario(actor), timeout=2 * BOUND_S)
        finally:
            await host.close()

    return asyncio.run(run())


async def held(actor, directory):
    """Return a call that runs until the test makes the file `open`."""
    call = asyncio.create_task(actor.call("hold", str(directory)))
    await until((directory / "held").exists)
    return call


def pid_exists(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie of a killed parent may await its new parent's wait.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def bytes_on_the_way(actor):
    """Return how many bytes the process of an actor has yet to read."""
    count = array("i", [0])
    fcntl.ioctl(actor._actor._write_fd, termios.FIONREAD, count)
    return count[0]


def open_descriptors():
    return {path.name for path in Path("/proc/self/fd").iterdir() if path.exists()}


def test_a_method_answers_with_the_options_it_was_made_with(own_process):
    async def scenario(actor):
        return await actor.call("greet", "world")

    assert with_actor(own_process, scenario, options={"greeting": "hi"}) == "hi, world"


def test_plain_values_and_reports_come_back(own_process):
    async def scenario(actor):
        values = (1, "two", 3.5, None, [True], {"a": (1, 2)}, b"raw")
        assert await actor.call("echo", *values) == values
        return await actor.call("report")

    assert with_actor(own_process, scenario) == StepReport(
        version=Version(3), metrics={"loss": 0.5}
    )


def test_arrays_make_the_round_trip(own_process):
    async def scenario(actor):
        array = np.arange(3_000_000, dtype=np.float32).reshape(3, -1)
        wanted = array * 2
        got = await actor.call("double", array)
        assert list(got) == ["array"]
        assert got["array"].dtype == np.float32
        assert np.array_equal(got["array"], wanted)

    with_actor(own_process, scenario)


def test_queued_calls_run_in_order(own_process):
    async def scenario(actor):
        counts = await asyncio.gather(*(actor.call("note", i) for i in range(200)))
        return counts, await actor.call("noted")

    assert with_actor(own_process, scenario) == (list(range(1, 201)), list(range(200)))


def test_the_event_loop_goes_on_while_a_method_runs(own_process, tmp_path):
    async def scenario(actor):
        call = await held(actor, tmp_path)
        for _ in range(3):
            await asyncio.sleep(0.01)
        assert not call.done()
        (tmp_path / "open").touch()
        await call

    with_actor(own_process, scenario)


def test_an_actor_lives_in_one_thread_that_is_not_the_loops(own_process):
    async def scenario(actor):
        places = {await actor.call("where") for _ in range(5)}
        ((pid, thread),) = places
        return (pid == os.getpid(), own_process or thread != threading.get_ident())

    assert with_actor(own_process, scenario) == (not own_process, True)


@pytest.mark.parametrize(
    ("kind", "error", "message"),
    [
        ("config", ConfigError, "trainer.lr = [1, 'x']: must be positive"),
        ("config_object", ConfigError, "trainer.lr = {1, 2}: must be a number"),
        ("user", UserError, "you can fix this"),
        ("storage", StorageError, "disk is full"),
        ("invariant", InvariantError, "broken"),
        ("root", RollartError, "root"),
    ],
)
def test_errors_of_the_project_keep_their_class(own_process, kind, error, message):
    async def scenario(actor):
        with pytest.raises(RollartError) as caught:
            await actor.call("fail", kind)
        assert await actor.call("greet", "again") == "hello, again"
        return caught.value

    raised = with_actor(own_process, scenario)
    assert (type(raised), str(raised)) == (error, message)
    if kind == "config":
        assert (raised.field, raised.value, raised.fix) == (
            "trainer.lr",
            [1, "x"],
            "must be positive",
        )


def test_a_subclass_of_a_project_error_is_caught_as_one(own_process):
    async def scenario(actor):
        with pytest.raises(UserError, match="picky"):
            await actor.call("fail", "subclass")

    with_actor(own_process, scenario)


@pytest.mark.parametrize(
    ("kind", "message"),
    [("other", "Echo.fail raised KeyError: 'other'"), ("exit", "Echo.fail raised SystemExit")],
)
def test_other_errors_carry_the_remote_traceback(own_process, kind, message):
    async def scenario(actor):
        with pytest.raises(ActorError, match=message) as caught:
            await actor.call("fail", kind)
        assert await actor.call("greet", "again") == "hello, again"
        return str(caught.value)

    text = with_actor(own_process, scenario)
    assert "Traceback (most recent call last)" in text
    assert "in fail" in text


def test_missing_and_private_methods_are_refused(own_process):
    async def scenario(actor):
        with pytest.raises(ActorError, match="has no attribute 'fly'"):
            await actor.call("fly")
        with pytest.raises(ActorError, match="'__init__' is private to Echo"):
            await actor.call("__init__")

    with_actor(own_process, scenario)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nonsense", "target = 'nonsense': write it as module:Class"),
        ("no_such_module:A", "target = 'no_such_module:A': there is no module 'no_such_module'"),
        ("json:Nope", "target = 'json:Nope': module 'json' has no 'Nope'"),
        (ECHO.replace("Echo", "Unmakable"), "unmakable.size = 3: choose another"),
    ],
)
def test_what_cannot_be_made_says_why(own_process, target, message):
    async def scenario(actor):
        raise AssertionError("made")

    with pytest.raises(ConfigError) as caught:
        with_actor(own_process, scenario, target=target, options={"size": 3})
    assert str(caught.value) == message


def test_closing_lets_the_object_close_itself(own_process, tmp_path):
    async def scenario(actor):
        await actor.call("note", 1)

    file = tmp_path / "closed"
    with_actor(own_process, scenario, options={"closed_file": str(file)})
    assert file.read_text() == "closed"


def test_an_error_while_closing_is_raised_by_close(own_process):
    async def scenario(actor):
        with pytest.raises(UserError, match="cannot close"):
            await actor.close()

    with pytest.raises(UserError, match="cannot close"):
        with_actor(own_process, scenario, target=ECHO.replace("Echo", "BadCloser"))


def test_a_closed_actor_takes_no_calls_and_fails_those_that_wait(own_process, tmp_path):
    async def scenario(actor):
        running = await held(actor, tmp_path)
        waiting = asyncio.create_task(actor.call("note", 1))
        closing = [asyncio.create_task(actor.close()) for _ in range(2)]
        await settled()
        (tmp_path / "open").touch()
        await asyncio.gather(*closing)
        assert await running is None
        with pytest.raises(ActorError, match="note was called on a closed actor"):
            await waiting
        with pytest.raises(ActorError, match="greet was called on a closed actor"):
            await actor.call("greet", "x")

    with_actor(own_process, scenario, grace_s=BOUND_S)


def test_a_cancelled_call_that_has_not_started_never_runs(own_process, tmp_path):
    async def scenario(actor):
        running = await held(actor, tmp_path)
        waiting = asyncio.create_task(actor.call("note", "never"))
        await settled()
        waiting.cancel()
        await settled()
        (tmp_path / "open").touch()
        await running
        return await actor.call("noted")

    assert with_actor(own_process, scenario) == []


def test_a_value_that_cannot_cross_is_told_and_nothing_breaks():
    async def scenario(actor):
        with pytest.raises(CodecError, match=r"builtins\.set cannot cross a pipe"):
            await actor.call("echo", {1, 2})
        with pytest.raises(ActorError, match=r"unsendable raised CodecError: .*builtins\.set"):
            await actor.call("unsendable")
        return await actor.call("echo", 1)

    assert with_actor(True, scenario) == (1,)


def test_a_killed_process_fails_running_and_waiting_calls_with_its_signal(tmp_path):
    async def scenario(actor):
        pid, _ = await actor.call("where")
        calls = [await held(actor, tmp_path)]
        calls += [asyncio.create_task(actor.call("greet", "x")) for _ in range(2)]
        await settled()
        os.kill(pid, signal.SIGKILL)
        results = await asyncio.gather(*calls, return_exceptions=True)
        wanted = f"the process {pid} of {ECHO} was killed by SIGKILL; it printed nothing"
        assert [(type(result), str(result)) for result in results] == [(ActorDiedError, wanted)] * 3
        with pytest.raises(ActorDiedError):
            await actor.call("greet", "x")

    with_actor(True, scenario)


def test_a_process_that_exits_is_told_with_its_code_and_last_words():
    async def scenario(actor):
        with pytest.raises(ActorDiedError) as caught:
            await actor.call("die", "out of luck", 7)
        return str(caught.value)

    text = with_actor(True, scenario, on_output=lambda line: None)
    assert text.endswith(f"of {ECHO} exited with code 7; its last output:\nout of luck")


def test_a_process_that_dies_while_a_large_array_is_sent_is_told():
    async def scenario(actor):
        pid, _ = await actor.call("where")
        os.kill(pid, signal.SIGSTOP)
        call = asyncio.create_task(actor.call("echo", np.zeros(10_000_000)))
        await until(lambda: bytes_on_the_way(actor))
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ActorDiedError, match="was killed by SIGKILL"):
            await call

    with_actor(True, scenario)


def test_what_a_process_prints_is_passed_on_line_by_line():
    lines: list[str] = []

    async def scenario(actor):
        await actor.call("say", "one\ntwo")

    with_actor(True, scenario, on_output=lines.append)
    assert lines == ["one\n", "two\n"]


def test_a_receiver_that_fails_does_not_stop_the_worker():
    def refuse(line):
        raise OSError(line)

    async def scenario(actor):
        await actor.call("say", "x" * 300_000)
        return await actor.call("greet", "world")

    assert with_actor(True, scenario, on_output=refuse) == "hello, world"


def test_closing_kills_a_process_that_does_not_answer(tmp_path):
    async def run():
        host = EmbeddedHost(grace_s=KILLED_S)
        actor = await host.spawn(ECHO, {}, own_process=True)
        pid, _ = await actor.call("where")
        call = await held(actor, tmp_path)
        await host.close()
        with pytest.raises(ActorDiedError, match="was killed by SIGKILL"):
            await call
        return pid

    pid = asyncio.run(run())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_closing_reaps_every_process_and_leaks_no_descriptor():
    async def run():
        host = EmbeddedHost()
        actors = [await host.spawn(ECHO, {}, own_process=True) for _ in range(3)]
        pids = [(await actor.call("where"))[0] for actor in actors]
        await host.close()
        return pids

    before = open_descriptors()
    pids = asyncio.run(run())
    assert open_descriptors() == before
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_thread_that_hangs_is_given_up_with_an_error(tmp_path):
    async def scenario(actor):
        call = await held(actor, tmp_path)
        with pytest.raises(ActorError) as caught:
            await actor.close()
        told.append(str(caught.value))
        (tmp_path / "open").touch()
        await call

    told: list[str] = []
    with pytest.raises(ActorError, match="did not end"):
        with_actor(False, scenario, grace_s=0.01)
    assert told == [f"{ECHO} did not end within 0.02 s"]


def test_a_spawn_that_is_cancelled_leaves_no_process(tmp_path):
    async def run():
        host = EmbeddedHost(grace_s=KILLED_S)
        target, options = ECHO.replace("Echo", "Unfinished"), {"directory": str(tmp_path)}
        spawning = asyncio.create_task(host.spawn(target, options, own_process=True))
        await until((tmp_path / "held").exists)
        spawning.cancel()
        with pytest.raises(asyncio.CancelledError):
            await spawning
        await host.close()

    asyncio.run(run())
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    assert [pid for pid in children if b"rollart.cluster.local_worker" in _command(pid)] == []


def _command(pid):
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_the_environment_of_the_host_reaches_the_process():
    async def scenario(actor):
        return await actor.call("environment", "OMP_NUM_THREADS")

    assert with_actor(True, scenario, env=thread_env(3)) == "3"


def test_a_worker_ignores_the_interrupt_key():
    async def scenario(actor):
        return await actor.call("interrupt")

    assert with_actor(True, scenario) == "still here"


PARENT = """
import asyncio, sys
sys.path.insert(0, sys.argv[1])
from rollart.cluster.local_host import EmbeddedHost
async def run():
    actor = await EmbeddedHost().spawn("host_actors:Echo", {}, own_process=True)
    print((await actor.call("where"))[0], flush=True)
    await (actor.call("sleep", 600) if sys.argv[2] == "busy" else asyncio.sleep(600))
asyncio.run(run())
"""


@pytest.mark.parametrize("state", ["busy", "idle"])
def test_a_worker_does_not_outlive_a_killed_parent(state):
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(PARENT), str(SUPPORT), state],
        stdout=subprocess.PIPE,
        text=True,
    ) as parent:
        pid = int(parent.stdout.readline())
        assert pid_exists(pid)
        parent.kill()
    wait_until(lambda: not pid_exists(pid))
