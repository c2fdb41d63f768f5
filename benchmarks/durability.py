"""Power cuts: a run's file operations, cut off at every point, and resumed from what is left.

Short runs are recorded with `strace`: a checkpoint after each step, older ones pruned, the last one
written twice, then a return to an earlier checkpoint. For every prefix of the recording the run's
directory is rebuilt as a power cut at that point could have left it (`durability_parts.disk`), and
read as `rollart train --resume` reads it.

- `prefixes`: different directories that were resumed from.
- `lost`: those in which a checkpoint reported as saved is not found whole, or an older one is
  found, or the event log does not reach up to the checkpoint that is found.
- `invented`: those in which something is found that never was a checkpoint.
- `resumed`: directories from which training really went on; their logs are replayed.

Plain: one rank and two, two random states at each point. `--full`: eight, and more resumed from.
`--quick`: one rank, fewer steps, no random states.
"""

import contextlib
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.durability_parts.disk import (
    Content,
    Disk,
    Operation,
    Tree,
    is_directory,
    read_operations,
)
from benchmarks.durability_parts.recorded_run import make_config
from benchmarks.durability_parts.recording import read_calls, record
from benchmarks.live_runs.timed import ROOT, say
from rollart.checkpoints.resume import read_checkpoint
from rollart.checkpoints.save import PREFIX, checkpoints
from rollart.cli.bench import Effort
from rollart.config import load_config
from rollart.errors import UserError
from rollart.observe.log import EventLog, LogHeader, read_log
from rollart.observe.replay import replay
from rollart.pipelines.agentic import train

NAME = "durability"
_RUN = "run/"
_LOG = "events.jsonl"
_LARGE_BYTES = 1 << 16
_READABLE: set[str] = set()
"""Configs that were loaded once; the same text is not loaded again."""


@dataclass(slots=True)
class Promise:
    """What the marks before a cut say that a run may rely on."""

    step: int | None = None
    """The newest checkpoint that was reported as saved, or that the run went back to."""
    course: int = 0
    """How often the run has gone back to an earlier checkpoint."""

    def take(self, text: str) -> None:
        """Take in a mark."""
        word, number = text.split()
        match word:
            case "captured":
                pass
            case "saved":
                self.step = max(int(number), self.step or 0)
            case "back":
                self.step = int(number)
            case "backed":
                self.course += 1
            case _:
                raise AssertionError(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Genuine:
    """A checkpoint that was really written."""

    course: int
    """How often the run had gone back before."""
    files: frozenset[tuple[str, bytes]]
    log: bytes
    """The event log when its moment was captured."""


@dataclass(slots=True)
class Recorded:
    """A recording, and the checkpoints that were really written in it."""

    root: Path
    operations: list[Operation]
    disk: Disk
    genuine: dict[int, list[Genuine]]
    """By step: the checkpoints that were written."""


def make_recording(root: Path, *, steps: int, ranks: int) -> Recorded:
    """Record runs in a directory."""
    root.mkdir()
    make_config(root)
    trace = root / "trace"
    command = ["-m", "benchmarks.durability_parts.recorded_run", str(root), str(steps), str(ranks)]
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    env = {**os.environ, "PYTHONPATH": path}
    record([sys.executable, *command], output=trace, env=env)
    recorded = read_recording(root, trace)
    trace.unlink()
    return recorded


def read_recording(root: Path, trace: Path) -> Recorded:
    """Read a recording of runs in a directory; check that it is complete."""
    calls = read_calls(trace, root=str(root))
    operations = read_operations(calls, root=str(root), marks=str(root / "marks"))
    disk = Disk(operations)
    recorded = Recorded(root=root, operations=operations, disk=disk, genuine={})
    _check_complete(recorded)
    _find_genuine(recorded)
    return recorded


def _check_complete(recorded: Recorded) -> None:
    """Compare what the recording amounts to with what is really there."""
    tree = recorded.disk.everything(len(recorded.operations))
    run = recorded.root / "run"
    real = {
        f"{_RUN}{path.relative_to(run)}": path.read_bytes()
        for path in run.rglob("*")
        if path.is_file()
    }
    held = {
        path: each.data
        for path, each in tree.items()
        if path.startswith(_RUN) and not is_directory(each)
    }
    differing = [path for path in {*real, *held} if real.get(path) != held.get(path)]
    if differing:
        raise AssertionError(f"the recording misses writes to {sorted(differing)[:5]}")


def _find_genuine(recorded: Recorded) -> None:
    course, logs = 0, dict[str, bytes]()
    for cut, each in enumerate(recorded.operations):
        word, _, number = each.text.partition(" ")
        course += word == "backed"
        if word == "captured":
            logs[number] = recorded.disk.everything(cut)[f"{_RUN}{_LOG}"].data
        if word == "saved":
            tree = recorded.disk.everything(cut)
            files = _files_of(tree, f"{_RUN}checkpoints/{PREFIX}{int(number):06d}/")
            written = Genuine(course=course, files=files, log=logs[number])
            recorded.genuine.setdefault(int(number), []).append(written)


def _files_of(tree: Tree, prefix: str) -> frozenset[tuple[str, bytes]]:
    return frozenset(
        (path.removeprefix(prefix), each.digest)
        for path, each in tree.items()
        if path.startswith(prefix) and not is_directory(each)
    )


class Rebuilder:
    """Makes directories of trees; files of the same content are one file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._blobs = directory / "blobs"
        self._blobs.mkdir(parents=True)
        self._made = 0

    @contextlib.contextmanager
    def rebuilt(self, tree: Tree) -> Iterator[Path]:
        """Give a run's directory as a tree has it."""
        self._made += 1
        place = self._directory / f"{self._made}"
        run = place / "run"
        run.mkdir(parents=True)
        for path, content in tree.items():
            if not path.startswith(_RUN):
                continue
            target = place / path
            if is_directory(content):
                target.mkdir(exist_ok=True)
            elif len(content.data) < _LARGE_BYTES or path == f"{_RUN}{_LOG}":
                target.write_bytes(content.data)  # resuming may change it: it must not be a link
            else:
                target.hardlink_to(self._blob(content))
        try:
            yield run
        finally:
            shutil.rmtree(place)

    def _blob(self, content: Content) -> Path:
        blob = self._blobs / content.digest.hex()
        if not blob.exists():
            blob.write_bytes(content.data)
        return blob


@dataclass(slots=True)
class Verdicts:
    """What was found in the directories that were looked at."""

    lost: list[str] = field(default_factory=list[str])
    invented: list[str] = field(default_factory=list[str])


def judge(run: Path, tree: Tree, promise: Promise, recorded: Recorded) -> str:
    """Say what is wrong with a directory after a power cut; empty: nothing."""
    try:
        saved = read_checkpoint(run)
    except UserError as error:
        return "" if promise.step is None else f"lost: step {promise.step} is not found: {error}"
    step = int(saved.directory.name.removeprefix(PREFIX))
    files = _files_on_disk(saved.directory, tree)
    found = next((each for each in recorded.genuine.get(step, []) if each.files == files), None)
    if found is None:
        return f"invented: {saved.directory.name} is none that was written"
    if promise.step is not None and step < promise.step:
        return f"lost: step {promise.step} is reported, {step} is found"
    # After a return, only the checkpoint returned to and what came of it may be found.
    if promise.course > found.course and step != promise.step:
        return f"invented: {saved.directory.name} is of a course that was given up"
    log = run / _LOG
    EventLog(log, LogHeader(seed=0)).close()
    if not log.read_bytes().startswith(found.log):
        return f"lost: the event log does not reach {saved.directory.name}"
    read_log(log)
    config = (run / "config.toml").read_text()
    if config not in _READABLE:
        load_config(run / "config.toml")
        _READABLE.add(config)
    return ""


def _files_on_disk(checkpoint: Path, tree: Tree) -> frozenset[tuple[str, bytes]]:
    """Return the files of a checkpoint, wherever the reader has found or recovered it."""
    name = checkpoint.name
    for prefix in (f"{_RUN}checkpoints/{name}/", f"{_RUN}checkpoints/.{name}.old/"):
        if files := _files_of(tree, prefix):
            return files
    return frozenset()


def cut_everywhere(
    recorded: Recorded, rebuilder: Rebuilder, *, seeds: Sequence[str]
) -> tuple[int, Verdicts, list[Tree]]:
    """Cut the power before each operation; return how many directories there were, and faults."""
    promise, verdicts = Promise(), Verdicts()
    seen: set[tuple[object, ...]] = set()
    resumable: dict[int, Tree] = {}
    for cut in range(len(recorded.operations) + 1):
        for tree in recorded.disk.states(cut, seeds=seeds):
            key = (promise.step, promise.course, frozenset(tree.items()))
            if key in seen:
                continue
            seen.add(key)
            with rebuilder.rebuilt(tree) as run:
                fault = judge(run, tree, promise, recorded)
            if fault:
                kind, _, what = fault.partition(": ")
                found = verdicts.lost if kind == "lost" else verdicts.invented
                found.append(f"before operation {cut}: {what}")
            elif promise.step is not None:
                resumable[cut] = tree
        if cut < len(recorded.operations) and (text := recorded.operations[cut].text):
            promise.take(text)
    return len(seen), verdicts, list(resumable.values())


def go_on(run: Path) -> bool:
    """Train one more step from a directory; say whether its log proves that nothing is lost."""
    step = int(checkpoints(run / "checkpoints")[-1].name.removeprefix(PREFIX))
    overrides = [f"run.directory={str(run)!r}", f"run.steps={step + 1}"]
    config = load_config(run / "config.toml", overrides)
    training = replace(config.training, ranks=1)
    with contextlib.redirect_stderr(io.StringIO()):
        code = train(replace(config, training=training), resume=run)
    proof = replay(run)
    return not (code or proof["lost"] or proof["trained_twice"])


def run(*, effort: Effort) -> dict[str, object]:
    """Record, cut and resume."""
    ranks, steps = ((1,), 3) if effort == "quick" else ((1, 2), 5)
    seeds = {"quick": (), "plain": ("a", "b"), "full": tuple("abcdefgh")}[effort]
    resumes = {"quick": 1, "plain": 2, "full": 12}[effort]
    figures = {"prefixes": 0, "lost": 0, "invented": 0, "operations": 0, "resumed": 0}
    faults: list[str] = []
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with (
        tempfile.TemporaryDirectory(prefix="rollart-durability-") as name,
        tempfile.TemporaryDirectory(prefix="durability-", dir=memory) as rebuilt,
    ):
        for count in ranks:
            root = Path(name).resolve() / f"ranks{count}"
            recorded = make_recording(root, steps=steps, ranks=count)
            rebuilder = Rebuilder(Path(rebuilt) / f"ranks{count}")
            found, verdicts, resumable = cut_everywhere(recorded, rebuilder, seeds=seeds)
            say(f"{count} rank(s): {len(recorded.operations)} operations, {found} directories")
            figures["operations"] += len(recorded.operations)
            figures["prefixes"] += found
            figures["lost"] += len(verdicts.lost)
            figures["invented"] += len(verdicts.invented)
            faults += [*verdicts.lost, *verdicts.invented]
            for tree in resumable[:: max(1, len(resumable) // resumes)][:resumes]:
                with rebuilder.rebuilt(tree) as directory:
                    if go_on(directory):
                        figures["resumed"] += 1
                    else:
                        figures["lost"] += 1
                        faults.append("a resumed run lost trajectories")
    for fault in faults[:20]:
        say(fault)
    return dict(figures)
