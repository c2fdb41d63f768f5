"""Forgeries against the rewards of code, and attacks on the limit of memory.

Each forgery is an answer that does not solve its task, scored by `unit_tests` with the task's tests
in every form, in sandboxes as root has them and as a mapped user without control groups has them.
It is forged if a single test passed, and unscored if the score failed instead of being 0. The
solved task is scored the same way, so a judge that pays nothing at all would be noticed, and the
same forgeries run against a test runner that shares a process with the solution.
"""

import asyncio
import json
import os
import secrets
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rollart.errors import RollartError, ScoreError
from rollart.rewards.context import close_sandbox, use_sandbox
from rollart.rewards.scoring import score
from rollart.sandbox.bubblewrap import BubblewrapSandbox, SandboxLauncher
from rollart.sandbox.cgroups import RUNNER_BYTES, GroupVersion, open_groups
from rollart.sandbox.options import SandboxOptions
from rollart.types import (
    GroupId,
    Json,
    Program,
    ProgramLimits,
    Reward,
    ScoreCall,
    Task,
    TrajectoryId,
    Turn,
    token_trajectory,
)
from studies.attacks import shared_process
from studies.attacks.attack import WAYS
from studies.attacks.forgeries import (
    FORGERIES,
    SOLVED,
    SOLVED_PROGRAM,
    Forgery,
    cases,
    forms,
)
from studies.attacks.memory import LIMITS, MEMORY
from studies.attacks.trap import Trap

CONCURRENCY = 4
SEED = 11
SYSTEM_PYTHON = "/usr/bin/python3"
NOBODY = 65534
RETRIES = 3
JUDGED = ProgramLimits(wall_s=8.0, cpu_s=1.5, memory_bytes=256 * 2**20)


def open_as(kind: str) -> BubblewrapSandbox:
    """Open a sandbox as this user has it, or as a mapped user without groups has it."""
    options = SandboxOptions(warm=CONCURRENCY, concurrency=CONCURRENCY, limits=JUDGED)
    if kind == "own":
        return BubblewrapSandbox(replace(options, cpu_shares=1024))
    is_root = os.geteuid() == 0
    options = replace(options, python=SYSTEM_PYTHON if is_root else "")
    user = NOBODY if is_root else None
    return BubblewrapSandbox(options, SandboxLauncher(options, as_user=user, groups="none"))


async def measure_forgeries(*, forms_each: int) -> dict[str, Any]:
    """Score every forgery with some forms of tests in each kind of sandbox."""
    tally: Counter[str] = Counter()
    forged: list[str] = []
    unscored: list[str] = []
    for kind in ("own", "mapped"):
        use_sandbox(lambda kind=kind: open_as(kind))
        try:
            await _score_all(kind, forms_each, tally, forged, unscored)
        finally:
            await close_sandbox()
            use_sandbox(None)
    shared = await _fool_shared_process()
    return {
        "forgeries": len(FORGERIES),
        "forgery_ways": len({each.way for each in FORGERIES}),
        "forgery_scores": tally["scored"],
        "forged": tally["forged"],
        "forged_by": forged,
        "unscored_by": unscored,
        "forgeries_unscored": tally["unscored"],
        "forgeries_stopped": tally["stopped"],
        "solved": tally["solved"],
        "solved_paid": tally["solved_paid"],
        "forged_in_shared_process": shared,
    }


async def _score_all(
    kind: str, forms_each: int, tally: Counter[str], forged: list[str], unscored: list[str]
) -> None:
    payloads = forms(SEED)
    names = list(payloads)
    slots = asyncio.Semaphore(2 * CONCURRENCY)

    async def one(forgery: Forgery, function: str, payload: dict[str, Json], form: str) -> None:
        async with slots:
            try:
                reward = await _score(_call(function, forgery.answer(), payload))
            except ScoreError as error:
                tally["unscored"] += 1
                unscored.append(f"{forgery.name}/{form}/{kind}: {error}")
                return
        tally["scored"] += 1
        tally["stopped"] += reward.parts["stopped"] > 0
        if reward.parts["passed"] > 0:
            tally["forged"] += 1
            forged.append(f"{forgery.name}/{form}/{kind}: {dict(reward.parts)}")

    async def solved(function: str, source: str, payload: dict[str, Json]) -> None:
        tally["solved"] += 1
        reward = await _score(_call(function, f"```python\n{source}\n```", payload))
        tally["solved_paid"] += reward.value == 1.0

    for form in names:
        await solved("unit_tests", SOLVED, payloads[form])
    await solved("stdin_stdout", SOLVED_PROGRAM, {"cases": cases(SEED)})
    async with asyncio.TaskGroup() as tasks:
        for number, forgery in enumerate(FORGERIES):
            for step in range(forms_each):
                form = names[(number + step) % len(names)]
                tasks.create_task(one(forgery, "unit_tests", payloads[form], form))
            if number % len(names) < forms_each:
                tasks.create_task(one(forgery, "stdin_stdout", {"cases": cases(SEED)}, "cases"))


async def _score(call: ScoreCall) -> Reward:
    """Score as a run does: again if the host was too busy."""
    for _ in range(RETRIES):
        try:
            return (await score(call))[0]
        except ScoreError as error:
            if error.is_final:
                raise
    return (await score(call))[0]


def _call(function: str, answer: str, payload: dict[str, Json]) -> ScoreCall:
    turn = Turn(
        prompt_tokens=(),
        tokens=(),
        logprobs=(),
        versions=(),
        observation="write mix",
        action=answer,
        reward=0.0,
    )
    trajectory = token_trajectory(
        id=TrajectoryId(1),
        group=GroupId(1),
        task=Task(id=1, env="mix", domain="mix", seed=1, payload=payload),
        turns=(turn,),
        stop="terminated",
        success=False,
        reward=0.0,
    )
    options: dict[str, Json] = {"mode": "fraction"}
    return ScoreCall(
        function=function, options=options, trajectories=(trajectory,), is_group=False, key="1"
    )


async def _fool_shared_process() -> int:
    """Return how many forgeries pass a test of a runner that shares their process."""
    sandbox = open_as("own")
    runner = Path(shared_process.__file__).read_bytes()
    given = {"entry_point": "", **forms(SEED)["statements"]}

    async def fools(forgery: Forgery) -> bool:
        secret = secrets.token_hex(16)
        program = Program(
            argv=("python3", "run_tests.py"),
            files={
                "run_tests.py": runner,
                "solution.py": forgery.answer().removeprefix("```python\n")[:-4].encode(),
                "tests.json": json.dumps(given).encode(),
            },
            stdin=f"{secret}\n".encode(),
            limits=JUDGED,
        )
        lines = (await sandbox.run(program)).stdout.decode(errors="replace").splitlines()
        return f"{secret} passed" in [line.strip() for line in lines]

    try:
        return sum(await asyncio.gather(*(fools(each) for each in FORGERIES)))
    finally:
        await sandbox.close()


def find_modes() -> dict[str, Callable[[SandboxOptions], SandboxLauncher] | str]:
    """Return how the memory of programs can be bounded here, or why not."""
    modes: dict[str, Callable[[SandboxOptions], SandboxLauncher] | str] = {}
    versions: tuple[GroupVersion, ...] = ("v1", "v2")
    for version in versions:
        groups = open_groups(1024, version)
        if groups is None:
            modes[version] = "not available on this machine"
            continue
        groups.close()
        modes[version] = lambda options, version=version: SandboxLauncher(options, groups=version)
    modes["none"] = lambda options: SandboxLauncher(options, groups="none", has_meter=True)
    if os.geteuid() == 0 and Path(SYSTEM_PYTHON).exists():
        modes["none, mapped user"] = lambda options: SandboxLauncher(
            replace(options, python=SYSTEM_PYTHON), as_user=NOBODY, groups="none", has_meter=True
        )
    return modes


async def measure_memory() -> dict[str, Any]:
    """Attack the limit of memory with every way of bounding it that this machine has."""
    over: list[str] = []
    escaped: list[str] = []
    modes: dict[str, Any] = {}
    programs = 0
    for mode, launch in find_modes().items():
        if isinstance(launch, str):
            modes[mode] = launch
            continue
        options = SandboxOptions(warm=0, concurrency=2, limits=LIMITS)
        sandbox = BubblewrapSandbox(options, launch(options))
        most, ends = await _attack_memory(mode, sandbox, over, escaped)
        programs += len(MEMORY)
        modes[mode] = {
            "programs": len(MEMORY),
            "most_mb": round(most / 2**20, 1),
            "held_by": sandbox.describe()["memory"],
            **{f"ended_{end}": count for end, count in sorted(ends.items())},
        }
        print(f"memory, {mode}: {modes[mode]}", file=sys.stderr)
    return {
        "memory_programs": programs,
        "memory_limit_mb": round((LIMITS.memory_bytes + RUNNER_BYTES) / 2**20),
        "memory_modes": modes,
        "over_limit": len(over),
        "over_limit_by": over,
        "memory_escapes": escaped,
    }


async def _attack_memory(
    mode: str, sandbox: BubblewrapSandbox, over: list[str], escaped: list[str]
) -> tuple[int, Counter[str]]:
    ends: Counter[str] = Counter()
    most = 0
    ways = list(WAYS)

    async def attack(number: int) -> None:
        nonlocal most
        each = MEMORY[number]
        way = ways[number % len(ways)] if mode.startswith("v") else "direct"
        try:
            result = await sandbox.run(each.program(trap.target, way))
        except RollartError as error:
            escaped.append(f"{each.name}/{mode}: {error}")
            return
        ends[result.end] += 1
        most = max(most, result.memory_bytes or 0)
        if (result.memory_bytes or 0) > each.limits.memory_bytes + RUNNER_BYTES:
            over.append(f"{each.name}/{mode}: {(result.memory_bytes or 0) / 2**20:.1f} MiB")
        escaped.extend(
            f"{each.name}/{mode}: {found}" for found in trap.findings(result, each.limits)
        )

    async with Trap() as trap:
        try:
            await asyncio.gather(*(attack(number) for number in range(len(MEMORY))))
        finally:
            await sandbox.close()
        escaped.extend(f"{mode}: process {pid} is left" for pid in trap.left_processes())
    return most, ends
