import asyncio
import json
import threading
from pathlib import Path

import pytest
from records import record

from rollart.atomic_files import replace_directory
from rollart.checkpoints import save as checkpointing
from rollart.checkpoints.save import (
    Checkpointer,
    checkpoints,
    find_checkpoint,
    load_saved,
    set_aside_later,
)
from rollart.control.rules import MODES, Batching, Rules
from rollart.control.scheduler import Scheduler
from rollart.control.snapshot import take_snapshot
from rollart.errors import ModelError, StorageError
from rollart.events import RunStarted, TrajectoryFinished
from rollart.rollout.buffer import Buffer
from rollart.types import EngineId, EngineInfo, TrajectoryId, TrajectoryInfo, Version


class DiskTrainer:
    """A trainer whose `save` writes one file, or fails as a disk does."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.saved: list[str] = []
        self.seen: list[list[str]] = []

    async def save(self, target: str) -> None:
        directory = Path(target)
        directory.mkdir(parents=True)
        (directory / "model.safetensors").write_text("weights")
        self.seen.append([path.name for path in checkpoints(directory.parent)])
        self.saved.append(directory.name)
        if self.error is not None:
            raise self.error

    async def close(self) -> None:
        pass


def spoil_version(state: Path) -> None:
    """Take the version out of a checkpoint's state."""
    written = json.loads(state.read_text())
    del written["scheduler"]["version"]
    state.write_text(json.dumps(written))


def halfway() -> tuple[Scheduler, Buffer]:
    """Return a scheduler with one finished attempt, and the buffer that holds it."""
    batching = Batching(groups_per_step=1, group_size=2)
    scheduler = Scheduler(Rules(steps=9, seed=1, mode=MODES["rollart"], batching=batching))
    engine = EngineInfo(id=EngineId("e"), pool="local", version=Version(0))
    scheduler.handle(RunStarted(engines=(engine,), slots=2), 0.0)
    info = TrajectoryInfo(
        id=TrajectoryId(0),
        born=Version(0),
        reward=1.0,
        success=True,
        turns=1,
        cost=2,
        stop="terminated",
    )
    scheduler.handle(TrajectoryFinished(info=info), 1.0)
    buffer = Buffer(scheduler.is_fresh)
    buffer.put(record(0))
    return scheduler, buffer


class Desk:
    """A checkpointer, its trainer and its warnings."""

    def __init__(self, directory: Path, *, every: int = 1, keep: int = 2) -> None:
        self.scheduler, buffer = halfway()
        self.trainer = DiskTrainer()
        self.warnings: list[str] = []
        self.logged: list[str] = []
        self.log_error: Exception | None = None
        self.directory = directory
        self.checkpointer = Checkpointer(
            directory,
            every=every,
            keep=keep,
            trainer=self.trainer,
            buffer=buffer,
            now=lambda: 12.5,
            notes=lambda: {"before": {"success_rate": 0.25}},
            log=self,
        )

    def flush(self) -> None:
        self.logged.append("flush")

    def sync(self) -> None:
        self.logged.append(f"sync with {self.names}")
        if self.log_error is not None:
            raise self.log_error

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def save(self, version: int) -> Path:
        self.scheduler.optimizer = Version(version)
        return asyncio.run(self.checkpointer.save(self.scheduler))

    def begin(self, version: int) -> None:
        async def run() -> None:
            async with asyncio.TaskGroup() as tasks:
                self.checkpointer.begin(self.scheduler, tasks)

        self.scheduler.optimizer = Version(version)
        asyncio.run(run())

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.directory.iterdir())


def test_a_checkpoint_is_read_back_as_it_was(tmp_path):
    desk = Desk(tmp_path)
    directory = desk.save(3)
    saved = load_saved(directory)
    assert directory == tmp_path / "step-000003"
    assert saved.directory == directory
    assert saved.scheduler == json.loads(json.dumps(take_snapshot(desk.scheduler)))
    assert saved.trajectories == (record(0),)
    assert saved.clock_s == 12.5
    assert saved.notes == {"before": {"success_rate": 0.25}}


def test_a_checkpoint_in_the_making_is_not_seen(tmp_path):
    desk = Desk(tmp_path)
    desk.save(1)
    desk.save(2)
    assert desk.trainer.seen == [[], ["step-000001"]]
    assert desk.names == ["step-000001", "step-000002"]


def test_checkpoints_are_begun_when_due_and_only_the_newest_are_kept(tmp_path):
    desk = Desk(tmp_path, every=2, keep=2)
    for version in range(1, 8):
        desk.begin(version)
    assert desk.names == ["step-000004", "step-000006"]
    never = Desk(tmp_path / "never", every=0)
    never.begin(4)
    assert not never.directory.exists()


def test_a_checkpoint_that_is_cancelled_while_it_gets_its_name_is_whole(tmp_path, monkeypatch):
    desk, renaming, go = Desk(tmp_path), threading.Event(), threading.Event()

    def rename_late(draft: Path, target: Path) -> None:
        renaming.set()
        go.wait(60)
        replace_directory(draft, target)

    async def run() -> None:
        task = asyncio.create_task(desk.checkpointer.save(desk.scheduler))
        await asyncio.to_thread(renaming.wait, 60)
        task.cancel()
        await asyncio.sleep(0.05)
        go.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    monkeypatch.setattr(checkpointing, "replace_directory", rename_late)
    asyncio.run(run())
    [kept] = checkpoints(tmp_path)
    names = {path.name for path in kept.iterdir()}
    assert names == {"model.safetensors", "run.json", "buffer.jsonl"}
    assert desk.names == [kept.name]


def test_a_checkpoint_of_the_same_step_replaces_the_one_before(tmp_path):
    desk = Desk(tmp_path, keep=1)
    desk.save(2)
    (tmp_path / "step-000002" / "old").write_text("old")
    desk.save(2)
    assert desk.names == ["step-000002"]
    assert not (tmp_path / "step-000002" / "old").exists()


@pytest.mark.parametrize(
    "error", [StorageError("the disk is full"), OSError(28, "No space left on device")]
)
def test_a_disk_that_refuses_costs_one_checkpoint_and_a_warning(tmp_path, error):
    desk = Desk(tmp_path)
    desk.begin(1)
    desk.trainer.error = error
    desk.begin(2)
    assert desk.names == ["step-000001"]
    [warning] = desk.warnings
    assert warning.startswith(
        "the checkpoint failed, the run continues (last good one: step-000001; next try after "
        "step 3): "
    )
    assert str(error) in warning
    with pytest.raises(StorageError):
        desk.save(3)
    desk.trainer.error = None
    desk.begin(4)
    assert desk.names == ["step-000001", "step-000004"]


def test_a_disk_that_refuses_the_runs_part_keeps_the_checkpoint_of_the_same_step(tmp_path):
    desk = Desk(tmp_path)
    kept = desk.save(1)
    before = {path.name: path.read_bytes() for path in kept.iterdir()}
    draft = tmp_path / ".draft-step-000001"

    async def save_where_the_buffer_cannot_go(_target: str) -> None:
        draft.mkdir()
        (draft / "buffer.jsonl").mkdir()

    desk.trainer.save = save_where_the_buffer_cannot_go
    with pytest.raises(StorageError, match=r"cannot write the checkpoint .*step-000001"):
        desk.save(1)
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before
    assert not draft.exists()


def test_the_first_checkpoint_that_fails_says_there_is_none(tmp_path):
    desk = Desk(tmp_path)
    desk.trainer.error = StorageError("read-only")
    desk.begin(1)
    assert desk.warnings == [
        "the checkpoint failed, the run continues (last good one: none; next try after step 2): "
        "read-only"
    ]


def test_a_user_may_name_a_run_or_one_of_its_checkpoints(tmp_path):
    desk = Desk(tmp_path / "checkpoints")
    first, second = desk.save(1), desk.save(2)
    assert find_checkpoint(tmp_path) == second
    assert find_checkpoint(first) == first


def test_what_is_no_run_is_told(tmp_path):
    with pytest.raises(StorageError, match="no such directory; name a run or one of its"):
        find_checkpoint(tmp_path / "nowhere")
    (tmp_path / "checkpoints" / "step-000001").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"holds no checkpoint \(looked for checkpoints/step-"):
        find_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda d: (d / "run.json").write_text("{"), "not a whole checkpoint"),
        (lambda d: (d / "run.json").write_text('{"format": 3}'), "not a whole checkpoint"),
        (lambda d: (d / "run.json").write_text('{"format": 7}'), "written in format 7, not 3"),
        (lambda d: spoil_version(d / "run.json"), "scheduler.version must be an integer"),
        (lambda d: (d / "buffer.jsonl").unlink(), "not a whole checkpoint"),
        (lambda d: (d / "buffer.jsonl").write_text('{"id": 1}\n'), "not a whole checkpoint"),
    ],
)
def test_a_damaged_checkpoint_is_told(tmp_path, damage, message):
    directory = Desk(tmp_path).save(1)
    damage(directory)
    with pytest.raises(ModelError, match=message):
        load_saved(directory)


def test_a_refusal_names_the_checkpoint_not_the_draft(tmp_path):
    desk = Desk(tmp_path)
    draft = tmp_path / ".draft-step-000004"
    desk.trainer.error = StorageError(f"cannot write the checkpoint {draft}: the disk is full")
    with pytest.raises(StorageError) as caught:
        desk.save(4)
    wanted = f"cannot write the checkpoint {tmp_path / 'step-000004'}: the disk is full"
    assert str(caught.value) == wanted


def test_a_run_that_goes_on_from_an_earlier_checkpoint_keeps_what_it_writes(tmp_path):
    desk = Desk(tmp_path, keep=3)
    first, *_ = [desk.save(version) for version in (10, 20, 30)]
    assert set_aside_later(first) == [
        tmp_path / "superseded-step-000020",
        tmp_path / "superseded-step-000030",
    ]
    desk.save(15)
    assert find_checkpoint(tmp_path / "step-000015") == checkpoints(tmp_path)[-1]
    assert [path.name for path in checkpoints(tmp_path)] == ["step-000010", "step-000015"]
    assert set_aside_later(tmp_path / "step-000015") == []


def test_a_checkpoint_whose_replacement_was_cut_short_is_found_again(tmp_path):
    whole = Desk(tmp_path / "checkpoints").save(4)
    before = whole.rename(whole.with_name(f".{whole.name}.old"))
    assert find_checkpoint(tmp_path) == whole
    assert not before.exists()


def test_the_log_is_on_the_disk_before_the_checkpoint_has_its_name(tmp_path):
    desk = Desk(tmp_path)
    desk.save(1)
    assert desk.logged == ["flush", "sync with ['.draft-step-000001']"]


def test_a_log_that_is_not_on_the_disk_costs_the_checkpoint(tmp_path):
    desk = Desk(tmp_path)
    desk.log_error = StorageError("events.jsonl: the event log cannot be written: disk full")
    desk.begin(1)
    assert desk.names == []
    assert "the event log cannot be written" in desk.warnings[0]


def test_a_checkpoint_that_failed_is_tried_again_after_more_and_more_steps(tmp_path):
    desk = Desk(tmp_path, every=6)
    desk.trainer.error = StorageError("the disk is full")
    for version in range(1, 24):
        desk.begin(version)
    tried = [int(name.rpartition("-")[2]) for name in desk.trainer.saved]
    assert tried == [6, 7, 9, 12, 18]
    desk.trainer.error = None
    for version in range(24, 32):
        desk.begin(version)
    assert desk.names == ["step-000024", "step-000030"]


def test_the_last_checkpoint_waits_for_a_disk_that_recovers(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpointing, "_LAST_PAUSES_S", (0.0, 0.0, 0.0))
    desk = Desk(tmp_path)
    desk.trainer.error = StorageError("the disk is full")
    with pytest.raises(StorageError):
        asyncio.run(desk.checkpointer.save_last(desk.scheduler))
    assert len(desk.trainer.saved) == 4
    warn = desk.warn

    def make_room(text: str) -> None:
        warn(text)
        desk.trainer.error = None

    desk.warn = make_room
    kept = asyncio.run(desk.checkpointer.save_last(desk.scheduler))
    assert kept.name in desk.names
    assert desk.warnings[-1] == ("the last checkpoint failed, next try in 0 s: the disk is full")


def test_what_a_killed_run_did_not_finish_is_removed(tmp_path):
    for name in (".draft-step-000007", "..draft-step-000007.new", ".removed-step-000001"):
        (tmp_path / name).mkdir()
    desk = Desk(tmp_path)
    desk.save(8)
    assert desk.names == ["step-000008"]
