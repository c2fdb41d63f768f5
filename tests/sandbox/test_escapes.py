"""Escapes, one by one: real attacks against real sandboxes."""

import asyncio
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from conditions import until

from rollart.sandbox.bubblewrap import BubblewrapSandbox, SandboxLauncher
from rollart.sandbox.options import SandboxOptions
from rollart.sandbox.subprocess import PlainSandbox
from rollart.types import ProgramLimits, ProgramResult
from studies.attacks.attack import WAYS, Attack
from studies.attacks.draw import ATTACKS
from studies.attacks.greed import DAEMONS, GREED
from studies.attacks.powers import POWERS
from studies.attacks.reach import FILES, NETWORK
from studies.attacks.trap import ENDING_S, Trap

pytestmark = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is not installed: apt-get install bubblewrap"
)

NOBODY = 65534
SYSTEM_PYTHON = "/usr/bin/python3"
needs_system_python = pytest.mark.skipif(
    os.geteuid() != 0 or not Path(SYSTEM_PYTHON).exists(),
    reason="wants root, and a Python that any user may read",
)


def named(attacks: tuple[Attack, ...]) -> list[object]:
    return [pytest.param(attack, id=attack.name) for attack in attacks]


def launch(
    attack: Attack, *, warm: int = 0, way: str = "direct", as_user: int | None = None
) -> tuple[ProgramResult, list[str], set[int]]:
    """Make one attack; return its result, what it reached and which processes it left."""

    async def attempt() -> tuple[ProgramResult, list[str], set[int]]:
        python = "" if as_user is None else SYSTEM_PYTHON
        options = SandboxOptions(warm=warm, limits=attack.limits, python=python)
        async with Trap() as trap:
            sandbox = BubblewrapSandbox(options, SandboxLauncher(options, as_user=as_user))
            try:
                await sandbox.warm_up()
                result = await sandbox.run(attack.program(trap.target, way))
                await asyncio.sleep(0)
                found = trap.findings(result, attack.limits)
            finally:
                await sandbox.close()
            return result, found, trap.left_processes()

    return asyncio.run(attempt())


@pytest.mark.parametrize("attack", named((*NETWORK, *FILES, *POWERS)))
def test_what_reaches_for_the_host_finds_nothing_and_ends_by_itself(attack: Attack) -> None:
    result, found, left = launch(attack)
    assert (found, left) == ([], set())
    assert result.end == "exited", result


@needs_system_python
@pytest.mark.parametrize("attack", named((*NETWORK, *FILES, *POWERS)))
def test_a_mapped_user_in_a_warm_sandbox_finds_nothing_either(attack: Attack) -> None:
    result, found, left = launch(attack, warm=1, as_user=NOBODY)
    assert (found, left) == ([], set())
    assert result.end == "exited", result


ENDS = {
    "memory_bomb": {"memory"},
    "shared_memory_bomb": {"memory"},
    "memory_file_bomb": {"memory"},
    "many_files": {"memory", "cpu"},
    "fill_disk": {"files"},
    "never_end": {"wall"},
    "exhaust_descriptors": {"wall"},
}
"""How an attack ends that has time to; all others by their processor time."""


@pytest.mark.parametrize("attack", named(GREED))
def test_what_uses_up_all_it_can_is_stopped_and_leaves_nothing(attack: Attack) -> None:
    ends = ENDS.get(attack.name, {"cpu"})
    wall_s = 0.6 if ends == {"wall"} else 30.0
    patient = replace(attack, limits=replace(attack.limits, wall_s=wall_s))
    result, found, left = launch(patient, warm=1)
    assert (found, left) == ([], set())
    assert result.end in ends, result
    assert max(len(result.stdout), len(result.stderr)) <= attack.limits.output_bytes
    assert result.is_cut == attack.name.startswith("huge_output")


@pytest.mark.parametrize("attack", named(DAEMONS))
def test_what_stays_behind_is_gone_when_its_program_is(attack: Attack) -> None:
    result, found, left = launch(attack)
    assert (result.end, found, left) == ("exited", [], set())


@pytest.mark.parametrize("way", list(WAYS))
def test_attacks_find_nothing_however_they_are_started(way: str) -> None:
    attack = next(each for each in ATTACKS if each.name == "through_proc")
    result, found, left = launch(attack, way=way)
    assert (found, left) == ([], set())
    assert b"failed" in result.stdout


def test_the_attacks_do_reach_a_host_that_nothing_protects() -> None:
    wanted = {"connect_loopback", "abstract_socket", "read_the_file", "symlink_out"}

    async def attempt(attack: Attack) -> list[str]:
        async with Trap() as trap:
            sandbox = PlainSandbox(SandboxOptions(kind="plain", allow_plain=True))
            program = replace(attack.program(trap.target), limits=ProgramLimits())
            result = await sandbox.run(program)
            await until(lambda: trap.findings(result, program.limits))
            return trap.findings(result, program.limits)

    reached = {a.name for a in ATTACKS if a.name in wanted and asyncio.run(attempt(a))}
    assert reached == wanted


def test_what_outlives_its_wall_limit_has_escaped() -> None:
    async def judged(wall_s: float) -> list[str]:
        result = ProgramResult(
            end="wall",
            exit_code=137,
            stdout=b"",
            stderr=b"",
            is_cut=False,
            wall_s=wall_s,
            start_s=0,
        )
        async with Trap() as trap:
            return trap.findings(result, ProgramLimits(wall_s=2.0))

    assert asyncio.run(judged(2.0 + ENDING_S)) == []
    assert asyncio.run(judged(2.5 + ENDING_S)) == ["ran 7.5 s, more than wall_s = 2"]
