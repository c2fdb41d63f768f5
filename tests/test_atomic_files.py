import errno
import os
from pathlib import Path

import pytest

from rollart import atomic_files
from rollart.atomic_files import (
    AppendFile,
    cut_short,
    recover_directory,
    remove_directory,
    replace_directory,
    write_file,
)
from rollart.errors import StorageError


def written(path: Path, text: str) -> Path:
    path.mkdir()
    (path / "file").write_text(text)
    return path


def test_a_draft_takes_the_place_of_what_was_there(tmp_path):
    target = written(tmp_path / "entry", "old")
    replace_directory(written(tmp_path / "draft", "new"), target)
    assert (target / "file").read_text() == "new"
    assert list(tmp_path.iterdir()) == [target]


def test_a_draft_that_cannot_be_renamed_leaves_what_was_there(tmp_path):
    target = written(tmp_path / "entry", "old")
    with pytest.raises(FileNotFoundError):
        replace_directory(tmp_path / "nothing", target)
    assert (target / "file").read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_a_replacement_that_was_cut_short_is_undone(tmp_path):
    written(tmp_path / ".entry-1.old", "old")
    assert cut_short(tmp_path, "entry-") == [tmp_path / "entry-1"]
    recover_directory(tmp_path / "entry-1")
    assert (tmp_path / "entry-1" / "file").read_text() == "old"
    recover_directory(tmp_path / "entry-1")
    assert cut_short(tmp_path, "entry-") == []


def test_what_a_crash_left_beside_a_whole_directory_is_not_taken_for_it(tmp_path):
    written(tmp_path / ".entry.old", "older")
    target = written(tmp_path / "entry", "old")
    recover_directory(target)
    assert (target / "file").read_text() == "old"
    replace_directory(written(tmp_path / "draft", "new"), target)
    assert list(tmp_path.iterdir()) == [target]


@pytest.fixture
def done(monkeypatch, tmp_path):
    """What is synced, renamed and removed, in order, by paths in the test's directory."""
    calls: list[str] = []

    def watch(name: str, path_of):
        real = getattr(os, name)

        def call(*args, **options):
            path = path_of(*args)
            if path.startswith(str(tmp_path)):
                calls.append(f"{name} {os.path.relpath(path, tmp_path)}")
            return real(*args, **options)

        monkeypatch.setattr(os, name, call)

    watch("fsync", lambda fd: str(Path(f"/proc/self/fd/{fd}").readlink()))
    watch("rename", lambda _old, new: str(new))
    watch("replace", lambda _old, new: str(new))
    return calls


def test_a_file_is_synced_before_and_its_directory_after_it_gets_its_name(tmp_path, done):
    write_file(tmp_path / "file", b"x", draft=tmp_path / "draft")
    assert done == ["fsync draft", "replace file", "fsync ."]
    write_file(tmp_path / "file", b"x", draft=tmp_path / "draft", is_durable=False)
    assert done[3:] == ["replace file"]


def test_a_directory_is_synced_before_and_its_parent_after_it_gets_its_name(tmp_path, done):
    target = written(tmp_path / "entry", "old")
    replace_directory(written(tmp_path / "draft", "new"), target)
    assert done == [
        "fsync draft/file",
        "fsync draft",
        "rename .entry.old",
        "rename entry",
        "fsync .",
    ]


def test_a_directory_loses_its_name_before_its_files(tmp_path, done):
    remove_directory(written(tmp_path / "entry", "old"))
    assert done == ["rename .removed-entry", "fsync ."]
    assert not list(tmp_path.iterdir())


class Disk:
    """`os.write` of a disk that takes so many bytes, and the time."""

    def __init__(self, monkeypatch, log: AppendFile) -> None:
        self.room = 1000
        self.now_s = 0.0
        log._now = lambda: self.now_s
        self._write = os.write
        monkeypatch.setattr(os, "write", self.write)

    def write(self, file: int, data: bytes) -> int:
        if not self.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = self._write(file, bytes(data)[: self.room])
        self.room -= taken
        return taken


def test_a_full_disk_makes_a_log_wait_and_loses_nothing(tmp_path, monkeypatch):
    said: list[str] = []
    log = AppendFile(tmp_path / "log", what="the log", warn=said.append)
    disk = Disk(monkeypatch, log)
    disk.room = 5
    for line in (b"one\n", b"two\n", b"three\n"):
        log.append(line)
        log.flush()
    assert said == [
        f"{tmp_path / 'log'}: the disk is full: the log waits in memory (up to 64 MiB) and is "
        "tried again; make room"
    ]
    with pytest.raises(StorageError, match=r"the log cannot be written: .*No space"):
        log.sync()
    disk.room = 1000
    log.flush()
    assert (tmp_path / "log").read_bytes() == b"one\nt"
    disk.now_s = 1.0
    log.flush()
    log.sync()
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\nthree\n"
    assert said[1:] == [f"{tmp_path / 'log'}: there is room again, nothing of the log is lost"]
    log.close()


def test_a_disk_that_stays_full_is_tried_less_often_and_ends_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic_files, "_MOST_WAITING_BYTES", 100)
    log = AppendFile(tmp_path / "log", what="the log")
    disk = Disk(monkeypatch, log)
    disk.room, tries = 0, []
    for second in range(20):
        disk.now_s = second
        log.append(b".")
        before = log._retry_s
        log.flush()
        tries += [second] if log._retry_s != before else []
    assert tries == [0, 1, 3, 7, 15]
    log.append(b"." * 200)
    disk.now_s = 100
    with pytest.raises(StorageError, match="the log cannot be written"):
        log.flush()
    with pytest.raises(StorageError, match="the log cannot be written"):
        log.close()
    log.close()
