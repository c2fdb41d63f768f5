"""What only shared memory promises: other processes, deaths, full directories."""

import errno
import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from rollart.errors import StorageError
from rollart.types import Version
from rollart.weights.shared_memory import SharedMemoryStore


def python(code, *args, **options):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


READER = """
import sys
from rollart.weights.shared_memory import SharedMemoryStore
store, last = SharedMemoryStore(sys.argv[1]), int(sys.argv[2])
seen, wrong, version = set(), 0, -1
print("ready", flush=True)
while version < last:
    version = store.latest()
    try:
        array = store.fetch(version)["w"]
    except KeyError:
        continue
    wrong += not (array == version).all()
    seen.add(version)
print(wrong, len(seen) > 0, array.flags.writeable)
"""


def test_another_process_reads_whole_versions_while_they_are_published(tmp_path):
    store = SharedMemoryStore(tmp_path)
    store.publish(Version(0), {"w": np.zeros(200_000)})
    reader = python(READER, tmp_path, 60)
    assert reader.stdout.readline() == "ready\n"
    for version in range(1, 61):
        store.publish(Version(version), {"w": np.full(200_000, float(version))})
    out, _ = reader.communicate(timeout=120)
    assert (out, reader.returncode) == ("0 True False\n", 0)
    store.close()


HALF_WRITER = """
import pathlib, sys, numpy as np
from rollart.weights import shared_memory
def hang(*_):
    print("half", flush=True)
    sys.stdin.read()
store = shared_memory.SharedMemoryStore(sys.argv[1])
store.publish(0, {"w": np.zeros(1000)})
if sys.argv[2] == "data":
    store._fill = hang
else:
    pathlib.Path.replace = hang
store.publish(1, {"w": np.ones(1000)})
"""


@pytest.mark.parametrize("moment", ["data", "manifest"])
def test_a_writer_killed_while_it_publishes_leaves_nothing_visible(tmp_path, moment):
    writer = python(HALF_WRITER, tmp_path, moment)
    assert writer.stdout.readline() == "half\n"
    writer.kill()
    writer.communicate()
    assert len(list(tmp_path.glob("*.data"))) == 2
    store = SharedMemoryStore(tmp_path)
    assert store.latest() == 0
    with pytest.raises(KeyError):
        store.fetch(Version(1))
    assert store.fetch(Version(0))["w"].tolist() == [0.0] * 1000
    store.publish(Version(1), {"w": np.full(1000, 2.0)})
    assert store.fetch(Version(1))["w"].tolist() == [2.0] * 1000
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [
        ".data",
        ".data",
        ".json",
        ".json",
    ]
    store.close()


def test_the_file_of_a_pruned_version_is_taken_again_unless_someone_reads_it(tmp_path):
    def inodes():
        return {path.stat().st_ino for path in tmp_path.glob("*.data")}

    store = SharedMemoryStore(tmp_path, keep=1)
    for version in range(3):
        store.publish(Version(version), {"w": np.full(1000, float(version))})
    settled = inodes()
    store.publish(Version(3), {"w": np.full(1000, 3.0)})
    assert inodes() == settled
    held = store.fetch(Version(3))["w"]
    store.publish(Version(4), {"w": np.full(1000, 4.0)})
    store.publish(Version(5), {"w": np.full(1000, 5.0)})
    assert held.tolist() == [3.0] * 1000
    assert inodes() != settled
    store.close()


def test_a_reader_keeps_files_mapped_but_locked_only_while_it_reads(tmp_path):
    def mapped() -> int:
        lines = Path("/proc/self/maps").read_text().splitlines()
        return sum(str(tmp_path) in line and " r--s " in line for line in lines)

    writer, reader = SharedMemoryStore(tmp_path, keep=1), SharedMemoryStore(tmp_path)
    for version in range(8):
        writer.publish(Version(version), {"w": np.full(1000, float(version))})
        assert reader.fetch(Version(version))["w"].tolist() == [float(version)] * 1000
    assert mapped() == 2  # the two files that the writer takes by turns
    part = reader.fetch(Version(7))["w"][500:]
    for version in range(8, 12):
        writer.publish(Version(version), {"w": np.full(1000, float(version))})
    assert part.tolist() == [7.0] * 500
    del part
    writer.publish(Version(12), {"w": np.full(2000, 12.0)})
    assert reader.fetch(Version(12))["w"].tolist() == [12.0] * 2000
    assert mapped() == 1  # the files of the smaller versions have no name any more
    writer.close()


HOLDER = """
import sys
from rollart.weights.shared_memory import SharedMemoryStore
held = SharedMemoryStore(sys.argv[1]).fetch(0)
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_killed_reader_blocks_nothing(tmp_path):
    store = SharedMemoryStore(tmp_path, keep=1)
    store.publish(Version(0), {"w": np.zeros(1000)})
    reader = python(HOLDER, tmp_path)
    assert reader.stdout.readline() == "ready\n"
    reader.send_signal(signal.SIGKILL)
    reader.communicate()
    for version in range(1, 5):
        store.publish(Version(version), {"w": np.full(1000, float(version))})
    assert store.fetch(Version(4))["w"].tolist() == [4.0] * 1000
    assert len(list(tmp_path.glob("*.data"))) == 2
    store.close()


def test_arrays_are_aligned_and_the_manifest_tells_all(tmp_path):
    store = SharedMemoryStore(tmp_path, checksum=True)
    store.publish(Version(7), {"a": np.ones(3, "<u2"), "b": np.zeros((2, 2), "<f4")})
    manifest = json.loads((tmp_path / "7.json").read_text())
    data = manifest.pop("data")
    checksum = manifest.pop("crc32")
    assert manifest == {
        "version": 7,
        "bytes": 128,
        "arrays": {
            "a": {"shape": [3], "dtype": "<u2", "offset": 0},
            "b": {"shape": [2, 2], "dtype": "<f4", "offset": 64},
        },
    }
    assert isinstance(checksum, int)
    assert (tmp_path / data).stat().st_size == 128
    store.close()


def test_a_changed_byte_is_found_by_the_checksum(tmp_path):
    store = SharedMemoryStore(tmp_path, checksum=True)
    store.publish(Version(0), {"w": np.zeros(100)})
    (data,) = tmp_path.glob("*.data")
    with data.open("r+b") as file:
        file.seek(99)
        file.write(b"x")
    with pytest.raises(StorageError, match="do not match their checksum"):
        store.fetch(Version(0))
    store.close()


def test_missing_short_or_damaged_files_are_told_not_mapped(tmp_path):
    store = SharedMemoryStore(tmp_path)
    store.publish(Version(0), {"w": np.zeros(100)})
    (data,) = tmp_path.glob("*.data")
    store.close()
    os.truncate(data, 64)
    with pytest.raises(StorageError, match="do not match their manifest"):
        store.fetch(Version(0))
    data.unlink()
    with pytest.raises(StorageError, match="weights version 0 was deleted"):
        store.fetch(Version(0))
    (tmp_path / "0.json").write_text("{")
    with pytest.raises(StorageError, match=r"0\.json is damaged"):
        store.fetch(Version(0))


FULL_WRITER = """
import resource, sys, numpy as np
from rollart.errors import StorageError
from rollart.weights.shared_memory import SharedMemoryStore
store = SharedMemoryStore(sys.argv[1])
store.publish(0, {"w": np.zeros(1000)})
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    store.publish(1, {"w": np.zeros(100_000)})
except StorageError as error:
    print(error)
print(store.latest(), store.fetch(0)["w"].sum())
"""


def test_a_refused_file_names_directory_and_bytes_and_keeps_what_was_there(tmp_path):
    out, _ = python(FULL_WRITER, tmp_path).communicate(timeout=120)
    assert out == (
        f"cannot store 800000 bytes of weights in {tmp_path}: {os.strerror(errno.EFBIG)}; "
        "free space there or choose another directory\n0 0.0\n"
    )
    assert len(list(tmp_path.iterdir())) == 2


def test_a_full_memory_file_system_is_an_error_not_a_crash(tmp_path):
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "rollart-test", str(tmp_path)],
        check=False,
        capture_output=True,
    )
    if mounted.returncode != 0:
        pytest.skip("mounting a small tmpfs needs privileges")
    try:
        store = SharedMemoryStore(tmp_path)
        store.publish(Version(0), {"w": np.ones(50_000)})
        with pytest.raises(StorageError, match=rf"800000 bytes of weights in {tmp_path}: No space"):
            store.publish(Version(1), {"w": np.ones(100_000)})
        assert store.latest() == 0
        assert store.fetch(Version(0))["w"].sum() == 50_000
        store.close()
        gc.collect()
    finally:
        subprocess.run(["umount", "-l", str(tmp_path)], check=True)


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot create the weight directory .*/file/weights"):
        SharedMemoryStore(tmp_path / "file" / "weights")
