"""The contract of the Sandbox port, over every adapter that runs here."""

import asyncio
import os
import shutil
from collections.abc import Callable
from dataclasses import replace

import pytest

from rollart.errors import ConfigError, SandboxError
from rollart.ports import Conversation, Sandbox, Talk
from rollart.sandbox import open_sandbox
from rollart.sandbox.bubblewrap import BubblewrapSandbox, SandboxLauncher
from rollart.sandbox.options import SandboxOptions
from rollart.types import Program, ProgramLimits, ProgramResult
from studies.attacks.trap import contained_processes

Open = Callable[[], Sandbox]


def without_groups(*, may_fork: bool) -> Sandbox:
    is_root = os.geteuid() == 0
    python = "/usr/bin/python3" if is_root else ""
    options = SandboxOptions(warm=0, python=python, allow_unbounded_memory=may_fork)
    as_user = 65534 if is_root else None
    return BubblewrapSandbox(options, SandboxLauncher(options, as_user=as_user, groups="none"))


ISOLATED: dict[str, Open] = {
    "cold": lambda: open_sandbox(SandboxOptions(warm=0)),
    "warm": lambda: open_sandbox(SandboxOptions(warm=2)),
    "mapped": lambda: without_groups(may_fork=True),
    "single": lambda: without_groups(may_fork=False),
}
PLAIN: dict[str, Open] = {
    "plain": lambda: open_sandbox(SandboxOptions(kind="plain", allow_plain=True)),
}
needs_bubblewrap = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is not installed: apt-get install bubblewrap"
)
isolated = [pytest.param(make, id=name, marks=needs_bubblewrap) for name, make in ISOLATED.items()]
forking = isolated[:3]
"""Sandboxes whose programs may start processes: a program that no group limits may not."""
every = [*isolated, *(pytest.param(make, id=name) for name, make in PLAIN.items())]
every_forking = [*forking, *every[len(isolated) :]]


def python(source: str, *argv: str, stdin: bytes = b"", **limits: float) -> Program:
    return Program(
        argv=("python3", "main.py", *argv),
        files={"main.py": source.encode()},
        stdin=stdin,
        limits=ProgramLimits(**{"wall_s": 60.0, **limits}),  # pyright: ignore[reportArgumentType]
    )


def run(make: Open, *programs: Program) -> list[ProgramResult]:
    """Run programs one after another in one sandbox."""

    async def all_of_them() -> list[ProgramResult]:
        sandbox = make()
        try:
            return [await sandbox.run(program) for program in programs]
        finally:
            await sandbox.close()

    return asyncio.run(all_of_them())


def seen(result: ProgramResult) -> tuple[str, int, bytes, bytes]:
    return result.end, result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("make", every)
def test_a_program_has_its_arguments_its_input_and_its_files(make: Open) -> None:
    source = (
        "import sys; print(sys.argv, input(), open('data/a.txt').read())\n"
        "print('e', file=sys.stderr)"
    )
    program = Program(
        argv=("python3", "main.py", "ä"),
        files={"main.py": source.encode(), "data/a.txt": b"here"},
        stdin=b"hello\n",
    )
    [result] = run(make, program)
    assert seen(result) == ("exited", 0, "['main.py', 'ä'] hello here\n".encode(), b"e\n")
    assert not result.is_cut


@pytest.mark.parametrize("make", every_forking)
def test_any_command_runs_and_its_exit_code_is_told(make: Open) -> None:
    results = run(
        make,
        Program(argv=("sh", "-c", "cat; echo done >&2; exit 3"), stdin=b"abc"),
        Program(argv=("python3", "-c", "import sys; sys.exit(int(sys.argv[1]))", "7")),
        Program(argv=("python3", "-c", "exit('no')")),
        Program(argv=("python3", "-m", "calendar", "2024", "2")),
    )
    assert [seen(result) for result in results[:3]] == [
        ("exited", 3, b"abc", b"done\n"),
        ("exited", 7, b"", b""),
        ("exited", 1, b"", b"no\n"),
    ]
    assert results[3].stdout.startswith(b"   February 2024")


@pytest.mark.parametrize("make", every)
def test_an_error_is_told_as_python_tells_it(make: Open) -> None:
    failing = python("def f():\n    return 1 / 0\nf()\n")
    [error, syntax] = run(make, failing, python("print(\n"))
    assert (error.end, error.exit_code, error.stdout) == ("exited", 1, b"")
    lines = error.stderr.decode().splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert lines[1].endswith('main.py", line 3, in <module>')
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert "runner" not in error.stderr.decode()
    assert (syntax.exit_code, b"SyntaxError" in syntax.stderr) == (1, True)


@pytest.mark.parametrize("make", every)
def test_a_command_that_is_not_there_exits_as_a_shell_would_say(make: Open) -> None:
    [result] = run(make, Program(argv=("no-such-command",)))
    assert (result.end, result.exit_code) == ("exited", 127)


@pytest.mark.parametrize("make", every)
def test_a_signal_and_the_wall_limit_are_told_apart(make: Open) -> None:
    results = run(
        make,
        python("import os; os.kill(os.getpid(), 15)"),
        python("import time; print('in', flush=True); time.sleep(600)", wall_s=2.0),
    )
    assert [seen(result) for result in results] == [
        ("killed", 143, b"", b""),
        ("wall", 137, b"in\n", b""),
    ]


@pytest.mark.parametrize("make", every)
def test_output_beyond_its_limit_is_thrown_away_and_the_program_goes_on(make: Open) -> None:
    source = "import sys\nfor _ in range(64): sys.stdout.write('x' * 65536)\nsys.exit(5)"
    [result] = run(make, python(source, output_bytes=1000))
    assert seen(result) == ("exited", 5, b"x" * 1000, b"")
    assert result.is_cut


@pytest.mark.parametrize("make", every)
def test_programs_beside_each_other_keep_their_answers(make: Open) -> None:
    async def side_by_side() -> list[bytes]:
        sandbox = make()
        try:
            programs = [python(f"print({number})") for number in range(8)]
            results = await asyncio.gather(*map(sandbox.run, programs))
        finally:
            await sandbox.close()
        return [result.stdout for result in results]

    assert asyncio.run(side_by_side()) == [f"{number}\n".encode() for number in range(8)]


@pytest.mark.parametrize("make", every)
def test_a_programs_environment_is_not_the_hosts(
    make: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s3cret")
    [result] = run(make, python("import os; print(sorted(os.environ))"))
    assert b"SECRET" not in result.stdout


@pytest.mark.parametrize("make", every)
@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", ""])
def test_a_file_outside_the_programs_directory_is_refused(make: Open, path: str) -> None:
    with pytest.raises(ConfigError, match=r"program\.files"):
        run(make, Program(argv=("true",), files={path: b""}))
    with pytest.raises(ConfigError, match=r"program\.argv"):
        run(make, Program(argv=()))


@pytest.mark.parametrize("make", isolated)
def test_nothing_of_a_program_is_left_for_the_next(make: Open) -> None:
    write = "import os; open('x', 'w'); open('/tmp/y', 'w'); print(os.getpid())"
    look = "import os; print(os.listdir('.'), sorted(os.listdir('/tmp')), os.getpid())"
    results = run(make, python(write), python(look))
    assert [result.stdout for result in results] == [b"2\n", b"['main.py'] ['work'] 2\n"]


@pytest.mark.parametrize("make", isolated)
def test_cancelling_a_run_leaves_no_process(make: Open) -> None:
    before = contained_processes()

    async def cancel_one() -> set[int]:
        sandbox = make()
        try:
            running = asyncio.create_task(sandbox.run(python("while True: pass")))
            while not contained_processes() - before:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            running.cancel()
            await asyncio.wait({running})
            assert running.cancelled()
        finally:
            await sandbox.close()
        return contained_processes() - before

    assert asyncio.run(cancel_one()) == set()


@pytest.mark.parametrize("make", isolated)
def test_closing_ends_what_runs_and_refuses_more(make: Open) -> None:
    before = contained_processes()

    async def close_one() -> BaseException | None:
        sandbox = make()
        running = asyncio.create_task(sandbox.run(python("import time; time.sleep(60)")))
        while not contained_processes() - before:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        await sandbox.close()
        await asyncio.wait({running})
        with pytest.raises(SandboxError, match="closed"):
            await sandbox.run(python(""))
        return running.exception()

    assert isinstance(asyncio.run(close_one()), SandboxError)
    assert contained_processes() == before


@pytest.mark.parametrize("make", isolated)
def test_files_beyond_their_limit_end_a_program_that_does_not_give_way(make: Open) -> None:
    source = "with open('x', 'wb') as f:\n    while True: f.write(bytes(65536))"
    [result] = run(make, python(source, files_bytes=2**20))
    assert (result.end, result.exit_code) == ("files", 1)


@pytest.mark.parametrize("make", forking)
def test_processes_beyond_their_limit_are_not_made(make: Open) -> None:
    source = """
import os, time
made = 0
try:
    while made < 50:
        if os.fork() == 0: time.sleep(600)
        made += 1
except OSError as error:
    print(made, type(error).__name__)
"""
    [result] = run(make, python(source, processes=6))
    assert seen(result) == ("exited", 0, b"5 BlockingIOError\n", b"")


@pytest.mark.parametrize("make", every)
def test_processor_time_is_limited(make: Open) -> None:
    [result] = run(make, python("while True: pass", cpu_s=0.3, wall_s=120.0))
    assert (result.end, result.stdout) == ("cpu", b"")


@pytest.mark.skipif(os.geteuid() != 0, reason="control groups want root here")
@pytest.mark.parametrize("make", isolated[:2])
def test_memory_is_limited_for_all_processes_together(make: Open) -> None:
    source = """
import os, time
for _ in range(3): os.fork()
block = bytearray(16 * 2**20)
time.sleep(600)
"""
    alone = "block = bytearray(40 * 2**20); print('fits')"
    results = run(
        make, python(alone, memory_bytes=64 * 2**20), python(source, memory_bytes=64 * 2**20)
    )
    assert [(result.end, result.stdout) for result in results] == [
        ("exited", b"fits\n"),
        ("memory", b""),
    ]


@pytest.mark.skipif(os.geteuid() != 0, reason="control groups want root here")
@pytest.mark.parametrize("make", isolated[:2])
def test_what_a_program_had_of_the_processors_is_told(make: Open) -> None:
    sleeping, spinning = run(
        make,
        python("import time; time.sleep(60)", wall_s=0.3),
        python("while True: pass", wall_s=120.0, cpu_s=1.0),
    )
    assert (sleeping.end, spinning.end) == ("wall", "cpu")
    assert sleeping.waited_s is not None
    assert spinning.waited_s is None
    assert sleeping.cpu_s is not None
    assert spinning.cpu_s is not None
    assert sleeping.cpu_s < 1.0 <= spinning.cpu_s


@pytest.mark.parametrize("make", every_forking)
def test_a_process_that_leaves_and_keeps_the_outputs_holds_up_nobody(make: Open) -> None:
    source = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    time.sleep(600)
    os._exit(0)
print('left', flush=True)
if len(sys.argv) > 1: time.sleep(600)
"""
    short, long = python(source), python(source, "stay", wall_s=2.0)
    results = run(make, short, long)
    assert [seen(result)[:3] for result in results] == [
        ("exited", 0, b"left\n"),
        ("wall", 137, b"left\n"),
    ]


@needs_bubblewrap
def test_without_groups_a_program_is_one_process_with_threads() -> None:
    source = """
import asyncio, functools, os, subprocess, threading
print = functools.partial(print, flush=True)
thread = threading.Thread(target=print, args=("thread",)); thread.start(); thread.join()
asyncio.run(asyncio.sleep(0))
spawn = functools.partial(os.posix_spawn, "/bin/true", ["x"], {})
for call in (os.fork, functools.partial(subprocess.run, ["true"]), spawn):
    try: call()
    except BlockingIOError: print("refused")
os.write(1, b"and ")
os.execvp("echo", ["echo", "replaced"])
"""
    [result] = run(ISOLATED["single"], python(source))
    assert seen(result) == ("exited", 0, b"thread\nrefused\nrefused\nrefused\nand replaced\n", b"")


TALKING = "import sys\nfor line in sys.stdin:\n    print(len(line), flush=True)\n"


def converse(make: Open, program: Program, talk: Talk) -> ProgramResult:
    async def run_it() -> ProgramResult:
        sandbox = make()
        try:
            return await sandbox.run(program, talk=talk)
        finally:
            await sandbox.close()

    return asyncio.run(run_it())


@pytest.mark.parametrize("make", every)
def test_a_program_can_be_talked_to_and_ends_with_the_talk(make: Open) -> None:
    heard: list[bytes] = []

    async def talk(conversation: Conversation) -> None:
        for size in (1, 3, 200_000):
            await conversation.send(b"x" * size + b"\n")
            heard.append(await conversation.read_line())

    result = converse(make, python(TALKING), talk)
    assert heard == [b"2\n", b"4\n", b"200001\n"]
    assert seen(result) == ("exited", 0, b"", b"")


@pytest.mark.parametrize("make", every)
def test_a_talk_ends_with_its_program_and_at_its_limits(make: Open) -> None:
    async def wait(conversation: Conversation) -> None:
        while await conversation.read_line():
            pass
        await asyncio.sleep(60)

    flood = "while True: print('x' * 1000, flush=True)"
    ended = converse(make, python("import sys; sys.exit(3)"), wait)
    slow = converse(make, python("import time; time.sleep(60)", wall_s=1.0), wait)
    flooded = converse(make, python(flood, output_bytes=20_000), wait)
    assert [(each.end, each.exit_code) for each in (ended, slow)] == [("exited", 3), ("wall", 137)]
    assert (flooded.end, flooded.exit_code) == ("killed", 137)


@pytest.mark.parametrize("make", every)
def test_what_a_talk_raises_is_raised(make: Open) -> None:
    async def fail(conversation: Conversation) -> None:
        raise KeyError("x")

    with pytest.raises(KeyError, match="x"):
        converse(make, python(TALKING), fail)


@needs_bubblewrap
@pytest.mark.parametrize("kind", ["cold", "plain"])
def test_a_trusted_program_waits_for_no_other(kind: str) -> None:
    async def both() -> bytes:
        options = SandboxOptions(warm=0, concurrency=1, allow_plain=True)
        sandbox = open_sandbox(replace(options, kind="plain" if kind == "plain" else "bubblewrap"))
        first = asyncio.create_task(sandbox.run(python("import time; time.sleep(60)")))
        await asyncio.sleep(0.1)
        try:
            return (await sandbox.run(python("print(1)"), is_trusted=True)).stdout
        finally:
            first.cancel()
            await asyncio.wait({first})
            await sandbox.close()

    assert asyncio.run(both()) == b"1\n"
