"""What weights in buckets promise beyond the contract: parts, deaths, damage, changes, pruning."""

import resource
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from rollart.errors import ConfigError, StorageError
from rollart.types import Version
from rollart.weights.blobs.files import FileBlobs
from rollart.weights.buckets import LONGEST_CHAIN, BucketStore


def python(code, *args, **options):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


def open_files(directory, **options):
    return BucketStore(FileBlobs(directory), **{"bucket_bytes": 1024, **options})


def weights(value, count=1000):
    return {"w": np.full(count, value, np.float32), "b": np.full(3, value, np.float64)}


def names(directory):
    """Return what kinds of values lie there, sorted, without their random parts."""
    return sorted(
        path.name if path.name == "head" else f"{path.name.split('-')[0]}.{path.name.split('.')[1]}"
        for path in directory.iterdir()
    )


def test_a_version_is_cut_into_buckets_of_equal_size_with_the_manifest_beside(tmp_path):
    open_files(tmp_path).publish(Version(5), weights(1.0))
    assert names(tmp_path) == [
        "5.0",
        "5.1",
        "5.2",
        "5.3",
        "5.layout",
        "5.manifest",
        "head",
    ]
    sizes = {path.name.split(".")[1]: path.stat().st_size for path in tmp_path.glob("5-*.?")}
    assert sizes == {"0": 1024, "1": 1024, "2": 1024, "3": 4096 - 3 * 1024}


def test_pruned_versions_leave_nothing(tmp_path):
    store = open_files(tmp_path, keep=1)
    for version in range(4):
        store.publish(Version(version), weights(version, count=10))
    assert names(tmp_path) == ["3.0", "3.layout", "3.manifest", "head"]


WRITER = """
import sys, numpy as np
from rollart.weights.buckets import BucketStore
from rollart.weights.blobs.files import FileBlobs
class Hanging(FileBlobs):
    def put(self, key, data):
        if key.startswith("1-") and key.endswith(sys.argv[2]):
            print("half", flush=True)
            sys.stdin.read()
        super().put(key, data)
store = BucketStore(Hanging(sys.argv[1]), bucket_bytes=1024)
store.publish(0, {"w": np.zeros(1000, np.float32)})
store.publish(1, {"w": np.ones(1000, np.float32)})
"""


@pytest.mark.parametrize("moment", [".layout", ".2", ".manifest"])
def test_a_writer_killed_half_way_leaves_nothing_visible_and_is_cleaned_up_after(tmp_path, moment):
    writer = python(WRITER, tmp_path, moment)
    assert writer.stdout.readline() == "half\n"
    writer.kill()
    writer.communicate()
    store = open_files(tmp_path)
    assert store.latest() == 0
    with pytest.raises(KeyError):
        store.fetch(Version(1))
    assert store.fetch(Version(0))["w"].tolist() == [0.0] * 1000
    store.publish(Version(2), weights(2.0))
    assert {name.split(".")[0] for name in names(tmp_path)} == {"0", "2", "head"}


def test_a_file_half_written_by_a_dead_process_is_removed(tmp_path):
    code = """
    import sys
    from rollart.weights.blobs import files
    files.Path.replace = lambda *_: (print("half", flush=True), sys.stdin.read())
    files.FileBlobs(sys.argv[1]).put("key", b"content")
    """
    writer = python(code, tmp_path)
    assert writer.stdout.readline() == "half\n"
    FileBlobs(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    writer.kill()
    writer.communicate()
    FileBlobs(tmp_path)
    assert list(tmp_path.iterdir()) == []


READER = """
import sys
from rollart.weights.buckets import BucketStore
from rollart.weights.blobs.files import FileBlobs
held = BucketStore(FileBlobs(sys.argv[1])).fetch(0)
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_killed_reader_blocks_nothing(tmp_path):
    store = open_files(tmp_path, keep=1)
    store.publish(Version(0), weights(0))
    reader = python(READER, tmp_path)
    assert reader.stdout.readline() == "ready\n"
    reader.kill()
    reader.communicate()
    for version in range(1, 4):
        store.publish(Version(version), weights(version))
    assert {name.split(".")[0] for name in names(tmp_path)} == {"3", "head"}


def damage(directory, suffix):
    (path,) = directory.glob(f"*-*.{suffix}")
    content = bytearray(path.read_bytes())
    content[7] ^= 1
    path.write_bytes(content)


def test_a_damaged_bucket_is_one_clear_error(tmp_path):
    store = open_files(tmp_path)
    store.publish(Version(4), weights(1.0))
    damage(tmp_path, "2")
    wanted = f"bucket 2 of weights version 4 in the directory {tmp_path} is damaged"
    with pytest.raises(StorageError, match=wanted):
        store.fetch(Version(4))


def test_a_bucket_that_was_deleted_is_one_clear_error(tmp_path):
    store = open_files(tmp_path)
    store.publish(Version(4), weights(1.0))
    next(tmp_path.glob("*-*.1")).unlink()
    with pytest.raises(StorageError, match=r"4-.*\.1 of weights version 4 was deleted from"):
        store.fetch(Version(4))


def test_a_damaged_head_is_one_clear_error(tmp_path):
    store = open_files(tmp_path)
    store.publish(Version(4), weights(1.0))
    (tmp_path / "head").write_bytes(b"{")
    with pytest.raises(StorageError, match=r"the list of weight versions in .* is damaged"):
        store.latest()


def test_a_full_disk_is_one_clear_error_and_older_versions_stay(tmp_path):
    store = open_files(tmp_path)
    store.publish(Version(0), weights(0))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, hard))
    try:
        with pytest.raises(StorageError, match="cannot write 1024 bytes of weights to the direct"):
            store.publish(Version(1), weights(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert {name.split(".")[0] for name in names(tmp_path)} == {"0", "head"}
    assert store.fetch(Version(0))["w"].tolist() == [0.0] * 1000
    store.publish(Version(1), weights(1))
    assert store.latest() == 1


def test_a_directory_that_cannot_be_made_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot use the weight directory"):
        FileBlobs(tmp_path / "file" / "below")


def test_a_run_that_went_back_replaces_the_versions_ahead_of_it(tmp_path):
    store = open_files(tmp_path, keep=3)
    for version in (7, 8, 9, 8):
        store.publish(Version(version), weights(version))
    assert store.latest() == 8
    with pytest.raises(KeyError):
        store.fetch(Version(9))
    assert {name.split(".")[0] for name in names(tmp_path)} == {"7", "8", "head"}


@pytest.mark.parametrize("size", [0, -64, 100])
def test_a_bucket_size_that_splits_alignment_is_refused(tmp_path, size):
    with pytest.raises(ConfigError, match=r"weights.bucket_bytes = .*: must be a multiple of 64"):
        open_files(tmp_path, bucket_bytes=size)


class TestDelta:
    """Only changed bytes."""

    def test_versions_are_chains_of_changes_that_any_reader_can_follow(self, tmp_path):
        store = open_files(tmp_path, delta=True)
        draw = np.random.default_rng(3)
        values = {"w": draw.standard_normal(5000).astype("<f4"), "h": np.arange(9, dtype="<u2")}
        for version in range(2 * LONGEST_CHAIN):
            store.publish(Version(version), values)
            fetched = open_files(tmp_path).fetch(Version(version))
            assert {name: each.tobytes() for name, each in fetched.items()} == {
                name: each.tobytes() for name, each in values.items()
            }
            values["w"] = values["w"] * np.float32(1.0001)
        bases = [each.base is None for each in store.head().stored]
        assert bases == [True] + [False] * (LONGEST_CHAIN - 1)

    def test_what_did_not_change_is_not_sent(self, tmp_path):
        store = open_files(tmp_path, delta=True, bucket_bytes=64 * 1024)
        draw = np.random.default_rng(3)
        values = {"w": draw.standard_normal(100_000).astype("<f4")}
        store.publish(Version(0), values)
        values["w"] = values["w"].copy()
        values["w"][20_000] += 1
        store.publish(Version(1), values)
        sent = {path.name.split(".")[1]: path.stat().st_size for path in tmp_path.glob("1-*")}
        buckets = {name: size for name, size in sent.items() if name.isdecimal()}
        assert {name: size for name, size in buckets.items() if size > 1} == {"1": buckets["1"]}
        assert buckets["1"] < 500

    def test_small_steps_take_less_than_the_whole(self, tmp_path):
        store = open_files(tmp_path, delta=True, bucket_bytes=64 * 1024)
        draw = np.random.default_rng(3)
        values = {"w": draw.standard_normal(200_000).astype("<f4")}
        store.publish(Version(0), values)
        store.publish(Version(1), {"w": values["w"] * np.float32(1 + 1e-5)})
        sent = sum(path.stat().st_size for path in tmp_path.glob("1-*"))
        assert sent < 0.5 * values["w"].nbytes

    def test_another_layout_is_written_whole(self, tmp_path):
        store = open_files(tmp_path, delta=True)
        store.publish(Version(0), weights(0))
        store.publish(Version(1), weights(1, count=5))
        assert [each.base for each in store.head().stored] == [None, None]

    def test_a_new_writer_begins_with_a_whole_version(self, tmp_path):
        open_files(tmp_path, delta=True).publish(Version(0), weights(0))
        open_files(tmp_path, delta=True).publish(Version(1), weights(1))
        assert [each.base for each in open_files(tmp_path).head().stored] == [None, None]

    def test_damage_in_changes_is_found(self, tmp_path):
        store = open_files(tmp_path, delta=True, keep=1)
        draw = np.random.default_rng(3)
        values = draw.standard_normal(500).astype("<f4")
        store.publish(Version(0), {"w": values})
        store.publish(Version(1), {"w": values * np.float32(1.01)})
        (path,) = tmp_path.glob("1-*.0")
        content = bytearray(path.read_bytes())
        for at in (0, 1, len(content) - 1):
            broken = content.copy()
            broken[at] ^= 0xFF
            path.write_bytes(broken)
            with pytest.raises(StorageError, match="bucket 0 of weights version 1"):
                store.fetch(Version(1))
        path.write_bytes(content)
        assert store.fetch(Version(1))["w"].tolist() == (values * np.float32(1.01)).tolist()


def test_other_users_cannot_read_the_directory(tmp_path):
    FileBlobs(tmp_path / "made")
    assert oct((tmp_path / "made").stat().st_mode & 0o777) == "0o700"


def test_two_runs_in_one_place_never_load_each_others_weights(tmp_path):
    first, second = (open_files(tmp_path, run=name) for name in ("first-1f", "second-2e"))
    first.publish(Version(1), weights(1.0))
    wanted = (
        f"the directory {tmp_path} holds the weights of the run first-1f, not of second-2e: give "
        "each run a weights.place of its own; if that run has ended, empty the place"
    )
    for use in (
        lambda: second.publish(Version(2), weights(2.0)),
        lambda: second.fetch(Version(1)),
        second.latest,
        second.head,
    ):
        with pytest.raises(StorageError) as caught:
            use()
        assert str(caught.value) == wanted
    with pytest.raises(StorageError, match="of the run first-1f, which still writes"):
        open_files(tmp_path).publish(Version(2), weights(2.0))
    assert open_files(tmp_path).latest() == 1  # without a name, any run's weights can be looked at
    same = open_files(tmp_path, run="first-1f")
    same.publish(Version(2), weights(3.0))
    assert first.fetch(Version(2))["b"][0] == 3.0


def test_a_place_that_a_run_has_released_is_taken_over_without_its_versions(tmp_path):
    first, second = (open_files(tmp_path, run=name) for name in ("first-1f", "second-2e"))
    first.publish(Version(7), weights(1.0))
    second.release()
    assert first.latest() == 7
    first.release()
    assert second.latest() is None
    with pytest.raises(KeyError):
        second.fetch(Version(7))
    second.publish(Version(8), weights(2.0))
    assert second.latest() == 8
    assert {name.partition(".")[0] for name in names(tmp_path)} == {"8", "head"}
    with pytest.raises(StorageError, match="of the run second-2e, not of first-1f"):
        first.latest()


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_place_of_a_writer_that_is_known_to_be_dead_is_taken_over(tmp_path, elsewhere):
    first, second = (open_files(tmp_path, run=name) for name in ("first-1f", "second-2e"))
    child = python("")
    child.communicate()
    machine = "another" if elsewhere else first._process.rpartition("-")[0]
    first._process = f"{machine}-{child.pid}"
    first.publish(Version(7), weights(1.0))
    if elsewhere:
        with pytest.raises(StorageError, match="of the run first-1f, not of second-2e"):
            second.publish(Version(1), weights(2.0))
    else:
        second.publish(Version(1), weights(2.0))
        assert second.latest() == 1


def test_a_writer_whose_place_was_taken_notices_at_its_next_version(tmp_path):
    first, second = (open_files(tmp_path, run=name) for name in ("first-1f", "second-2e"))
    first.publish(Version(1), weights(1.0))
    first.release()
    second.publish(Version(1), weights(2.0))
    with pytest.raises(StorageError, match="of the run second-2e, not of first-1f"):
        first.publish(Version(2), weights(1.0))
    assert second.fetch(Version(1))["b"][0] == 2.0
