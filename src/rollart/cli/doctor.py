"""`rollart doctor`: what this machine can run, and why not. Looks; changes nothing."""

import asyncio
import importlib
import importlib.metadata
import json
import os
import platform
import shutil
import sys
from argparse import ArgumentParser, Namespace
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import rollart
from rollart.cli.output import BOLD, DIM, GREEN, RED, YELLOW, paint, say
from rollart.errors import RollartError
from rollart.sandbox import try_sandbox
from rollart.sandbox.options import SandboxOptions

_MARKS = {"ok": ("yes", GREEN), "limited": ("part", YELLOW), "missing": ("no ", RED)}
_GIB = 2**30
_PACKAGES = (
    ("transformers", "models and tokenizers", "train"),
    ("ray", "runs on a cluster: rollart train --address", "ray"),
    ("peft", "adapters: training.lora", "lora"),
    ("httpx", "reward functions behind a URL, and judges", "rewards"),
    ("math-verify", "the reward of mathematics", "math"),
    ("boto3", "reward functions on AWS Lambda", "lambda"),
    ("fsspec", "weights in remote files: weights.store = files", "files"),
    ("mooncake-transfer-engine-non-cuda", "weights through Mooncake", "mooncake"),
    ("metaworld", "robot tasks", "robot"),
    ("trl", "rollart bench trl", "bench"),
)
"""Package, what it is for, and the extra that brings it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing looked at."""

    name: str
    state: str
    """ok, limited or missing."""
    detail: str


def add_doctor(parser: ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = "Show what this machine can run, and why not."
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run_doctor(arguments: Namespace) -> int:
    """Examine the machine and print the findings."""
    findings = examine()
    if arguments.json:
        found = [asdict(each) for each in findings]
        say(json.dumps({"rollart": rollart.__version__, "findings": found}))
        return 0
    say(paint(f"rollart {rollart.__version__}", BOLD))
    width = max(len(each.name) for each in findings)
    for each in findings:
        mark, colour = _MARKS[each.state]
        say(f"  {paint(mark, colour)}  {each.name:<{width}}  {paint(each.detail, DIM)}")
    return 0


def examine() -> list[Finding]:
    """Look at everything a run may need."""
    return [
        _python(),
        _cores(),
        _memory(),
        _space("shared memory", Path("/dev/shm"), need_gib=0.5),  # noqa: S108
        _space("disk here", Path.cwd(), need_gib=2.0),
        *_torch(),
        *(_package(*each) for each in _PACKAGES),
        _program("bubblewrap", ("bwrap",), "the sandbox of code that models write"),
        _sandbox(),
    ]


def _python() -> Finding:
    version = platform.python_version()
    ok = sys.version_info >= (3, 11)
    detail = f"{version} on {platform.system()} {platform.machine()}"
    return Finding(name="python", state="ok" if ok else "missing", detail=detail)


def _cores() -> Finding:
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    if (count or 1) >= 2:
        return Finding(name="cores", state="ok", detail=f"{count}: training overlaps rollout")
    detail = "1: training and rollout take turns; modes differ little in speed"
    return Finding(name="cores", state="limited", detail=detail)


def _memory() -> Finding:
    if not hasattr(os, "sysconf"):
        return Finding(name="memory", state="limited", detail="unknown on this system")
    gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / _GIB
    limit = "any tiny model" if gib >= 4 else "tiny:0.3M and tiny:1M; 4 GiB run the others"
    state = "ok" if gib >= 4 else "limited"
    return Finding(name="memory", state=state, detail=f"{gib:.1f} GiB: {limit}")


def _space(name: str, path: Path, *, need_gib: float) -> Finding:
    if not path.is_dir():
        detail = f"{path} does not exist: use weights.store = memory"
        return Finding(name=name, state="missing", detail=detail)
    free = shutil.disk_usage(path).free / _GIB
    state = "ok" if free >= need_gib else "limited"
    more = "" if state == "ok" else f"; at least {need_gib:g} GiB is advised"
    return Finding(name=name, state=state, detail=f"{free:.1f} GiB free in {path}{more}")


def _torch() -> list[Finding]:
    try:
        torch: Any = importlib.import_module("torch")
    except ImportError as error:
        detail = f"{error}: pip install torch, then 'rollart[train]'"
        return [Finding(name="torch", state="missing", detail=detail)]
    found = [Finding(name="torch", state="ok", detail=f"{torch.__version__}: trains and samples")]
    if not torch.cuda.is_available():
        why = "this torch is built without CUDA" if torch.version.cuda is None else "no GPU is seen"
        found.append(Finding(name="cuda", state="missing", detail=f"{why}; device = cpu works"))
        return [*found, _number_format()]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        detail = f"{properties.name}, {properties.total_memory / _GIB:.0f} GiB"
        found.append(Finding(name=f"cuda:{index}", state="ok", detail=detail))
    return [*found, Finding(name="numbers", state="ok", detail="bfloat16 is fast on these GPUs")]


def _number_format() -> Finding:
    info = Path("/proc/cpuinfo")
    flags = info.read_text(encoding="utf-8") if info.exists() else ""
    if "amx_bf16" in flags or "avx512_bf16" in flags:
        return Finding(name="numbers", state="ok", detail="float32; bfloat16 may pay on this CPU")
    detail = "use float32: this CPU has no fast bfloat16"
    return Finding(name="numbers", state="ok", detail=detail)


def _package(name: str, purpose: str, extra: str) -> Finding:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        detail = f"{purpose}: pip install 'rollart[{extra}]'"
        return Finding(name=name, state="missing", detail=detail)
    return Finding(name=name, state="ok", detail=f"{version}: {purpose}")


def _sandbox() -> Finding:
    """Run one program in a sandbox and say what enforces its limits."""
    try:
        held_by = asyncio.run(try_sandbox(SandboxOptions()))
    except RollartError as error:
        return Finding(name="sandbox", state="missing", detail=f"runs no program here: {error}")
    limits = "; ".join(f"{name}: {held_by[name]}" for name in ("memory", "cpu", "processes"))
    state = "ok" if "cgroup" in held_by["memory"] else "limited"
    return Finding(name="sandbox", state=state, detail=f"one program ran; {limits}")


def _program(name: str, commands: tuple[str, ...], purpose: str) -> Finding:
    for command in commands:
        if path := shutil.which(command):
            return Finding(name=name, state="ok", detail=f"{path}: {purpose}")
    return Finding(name=name, state="missing", detail=f"{purpose}: install the package {name}")
