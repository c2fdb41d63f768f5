"""The contract of the WeightStore port, over every store."""

import gc
import json
import re
import resource
import subprocess
import sys
import threading
import weakref
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from places import PLACES

from rollart.errors import ConfigError, InvariantError, StorageError, UserError
from rollart.types import Version
from rollart.weights.layout import specs_of
from rollart.weights.prefetch import open_source
from rollart.weights.store import open_store

DTYPES = ["<f4", "<f8", "<f2", "<u2", "<i8", "|i1", "|b1", "<c8"]
STORES = ["memory", "shared_memory", *PLACES]
SHARED = ["shared_memory", "files", "fsspec_local", "relay", "mooncake"]
"""Stores that another process can read."""
FILES = ["files", "fsspec_local", "relay", "relay_far"]
FULL = r"cannot (write|store) \d+ bytes of weights (to|in) .*; free space there or choose another"


@pytest.fixture(params=STORES)
def open_at(request, places):
    """Return what opens the store of a kind for a directory, as often as wanted."""
    if request.param in PLACES:
        return partial(places.open, request.param)
    return lambda directory, keep=2: open_store(request.param, str(directory), keep)


@pytest.fixture
def store(open_at, tmp_path):
    store = open_at(tmp_path)
    yield store
    store.close()


def filled(value, shape=(3, 4)):
    return {"layer.weight": np.full(shape, value, np.float32), "norm": np.arange(5, dtype="<u2")}


def assert_same(got, wanted):
    assert list(got) == list(wanted)
    for name, array in wanted.items():
        assert got[name].dtype == array.dtype
        assert got[name].shape == array.shape
        assert got[name].tobytes() == array.tobytes()


def test_a_new_store_has_no_version(store):
    assert store.latest() is None
    with pytest.raises(KeyError):
        store.fetch(Version(0))


def test_what_was_published_is_fetched(store):
    store.publish(Version(3), filled(1.5))
    assert store.latest() == 3
    assert_same(store.fetch(Version(3)), filled(1.5))


def test_a_version_is_a_copy_that_nobody_can_change(store):
    weights = filled(1.0)
    store.publish(Version(0), weights)
    weights["layer.weight"][:] = 2.0
    fetched = store.fetch(Version(0))
    assert_same(fetched, filled(1.0))
    with pytest.raises(ValueError, match="read-only"):
        fetched["layer.weight"][0, 0] = 9.0


def test_only_the_newest_versions_stay(store):
    for version in range(5):
        store.publish(Version(version), filled(version))
    assert store.latest() == 4
    assert_same(store.fetch(Version(3)), filled(3))
    assert_same(store.fetch(Version(4)), filled(4))
    with pytest.raises(KeyError):
        store.fetch(Version(2))


def test_a_fetched_version_outlives_its_pruning(store):
    store.publish(Version(0), filled(0))
    held = store.fetch(Version(0))["layer.weight"]
    for version in range(1, 8):
        store.publish(Version(version), filled(version))
    gc.collect()
    assert held.tolist() == filled(0)["layer.weight"].tolist()


def test_a_version_published_again_is_replaced(store):
    store.publish(Version(1), filled(1))
    held = store.fetch(Version(1))
    store.publish(Version(1), filled(7, shape=(2, 2)))
    assert_same(store.fetch(Version(1)), filled(7, shape=(2, 2)))
    assert_same(held, filled(1))


def test_sizes_may_change_between_versions(store):
    for version, rows in enumerate([1, 100, 7, 0, 50, 50, 50]):
        store.publish(Version(version), filled(version, shape=(rows, 9)))
        assert_same(store.fetch(Version(version)), filled(version, shape=(rows, 9)))


def test_strided_arrays_are_stored_in_order(store):
    array = np.arange(24, dtype=np.float32).reshape(4, 6)
    store.publish(Version(0), {"t": array.T, "s": array[::2, ::-1]})
    assert_same(store.fetch(Version(0)), {"t": array.T.copy(), "s": array[::2, ::-1].copy()})


def test_an_array_of_objects_is_refused_by_name(store):
    with pytest.raises(InvariantError, match="weight 'bad' has dtype object"):
        store.publish(Version(0), {"bad": np.array([object()])})
    assert store.latest() is None


def test_closing_twice_is_fine_and_keeps_versions_for_other_holders(open_at, tmp_path):
    first = open_at(tmp_path)
    second = open_at(tmp_path)
    first.publish(Version(0), filled(0))
    first.close()
    first.close()
    assert_same(second.fetch(Version(0)), filled(0))
    second.close()


def test_a_reader_thread_only_sees_whole_versions(store):
    wrong: list[object] = []
    done = threading.Event()

    def read():
        while not done.is_set():
            version = store.latest()
            if version is None:
                continue
            try:
                array = store.fetch(version)["layer.weight"]
            except KeyError:
                continue
            if not (array == version).all():
                wrong.append((version, array.copy()))

    reader = threading.Thread(target=read)
    reader.start()
    for version in range(40):
        store.publish(Version(version), filled(version, shape=(64, 64)))
    done.set()
    reader.join()
    assert wrong == []


class Stream:
    """Arrays made one by one, which counts how many are held at the same time."""

    def __init__(self, arrays):
        self._arrays = arrays
        self._alive: list[weakref.ref] = []
        self.most_alive = 0

    def __iter__(self):
        for name, array in self._arrays.items():
            fresh = array.copy()
            self._alive.append(weakref.ref(fresh))
            self.most_alive = max(self.most_alive, sum(each() is not None for each in self._alive))
            yield name, fresh
            del fresh


def test_arrays_that_come_one_by_one_are_let_go_one_by_one(store):
    arrays = {f"layer.{number}": np.full((40, 50), number, np.float32) for number in range(9)}
    for version in (1, 2):
        stream = Stream(arrays)
        store.stream(Version(version), specs_of(arrays), iter(stream))
        assert_same(store.fetch(Version(version)), arrays)
        assert stream.most_alive <= 2


def failing(arrays):
    yield from arrays
    raise StorageError("the trainer ran out of them")


def test_a_stream_that_breaks_off_leaves_nothing_and_what_was_there_stays(store):
    arrays = {f"layer.{number}": np.full((40, 50), number, np.float32) for number in range(4)}
    store.publish(Version(1), arrays)
    half = list(arrays.items())[:2]
    with pytest.raises(StorageError, match="the trainer ran out of them"):
        store.stream(Version(2), specs_of(arrays), failing(half))
    assert store.latest() == 1
    with pytest.raises(KeyError):
        store.fetch(Version(2))
    assert_same(store.fetch(Version(1)), arrays)
    store.publish(Version(2), arrays)
    assert store.latest() == 2


@pytest.mark.parametrize("wrong", ["missing", "order", "shape", "more"])
def test_arrays_other_than_those_told_are_refused_by_name(store, wrong):
    told = {"a": np.zeros(3, np.float32), "b": np.ones(3, np.float32)}
    came = {
        "missing": [("a", told["a"])],
        "order": [("b", told["b"]), ("a", told["a"])],
        "shape": [("a", np.zeros(4, np.float32)), ("b", told["b"])],
        "more": [*told.items(), ("c", told["a"])],
    }[wrong]
    with pytest.raises(InvariantError, match=r"weight '[abc]' "):
        store.stream(Version(0), specs_of(told), came)
    assert store.latest() is None


def test_a_version_that_never_arrives_is_one_clear_message(store):
    store.publish(Version(1), filled(1))
    source = open_source(store, wait_s=0.05)
    wanted = (
        f"weights version 2 did not arrive in {store.place} within 0.05 s; its newest version is "
        "1: check that the trainer is alive and publishes there, or raise weights.wait_s"
    )
    with pytest.raises(StorageError, match=re.escape(wanted)):
        source.fetch(Version(2))
    source._wait_s = 60.0
    assert_same(source.fetch(Version(1)), filled(1))
    source.close()


@pytest.mark.parametrize("open_at", ["shared_memory", *FILES], indirect=True)
def test_a_full_store_is_one_clear_message_and_what_was_there_stays(open_at, tmp_path):
    store = open_at(tmp_path)
    store.publish(Version(0), filled(0))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512, hard))
    try:
        with pytest.raises(StorageError, match=FULL):
            store.publish(Version(1), filled(1, shape=(40, 40)))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert store.latest() == 0
    assert_same(store.fetch(Version(0)), filled(0))
    assert [path.name for path in tmp_path.rglob("*") if "1-" in path.name] == []
    assert [path.name for path in tmp_path.rglob("*part*")] == []
    store.publish(Version(1), filled(1))
    assert store.latest() == 1
    store.close()


READER = """
import json, sys
from rollart.weights.store import open_store
kind, place = json.loads(sys.argv[1])
held = open_store(kind, place, 1).fetch(0)
print(float(held["layer.weight"][0, 0]), flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("place", [*SHARED])
def test_a_killed_reader_blocks_nothing_and_keeps_nothing(places, tmp_path, place):
    kind, url = ("shared_memory", str(tmp_path))
    if place != "shared_memory":
        kind, url = places.opening(place, tmp_path)
    store = open_store(kind, url, 1)
    store.publish(Version(0), filled(3))
    reader = subprocess.Popen(
        [sys.executable, "-c", READER, json.dumps([kind, url])],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert reader.stdout.readline() == "3.0\n"
    reader.kill()
    reader.communicate()
    for version in range(1, 4):
        store.publish(Version(version), filled(version))
    assert store.latest() == 3
    with pytest.raises(KeyError):
        store.fetch(Version(0))
    assert_same(store.fetch(Version(3)), filled(3))
    store.close()


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    weights=st.dictionaries(
        st.text(min_size=1, max_size=8),
        st.sampled_from(DTYPES).flatmap(
            lambda dtype: arrays.arrays(dtype, arrays.array_shapes(min_dims=0, min_side=0))
        ),
        max_size=5,
    ),
    version=st.integers(0, 2**40),
)
def test_any_shape_and_dtype_survives(open_at, tmp_path_factory, weights, version):
    store = open_at(tmp_path_factory.mktemp("any"), 1)
    store.publish(Version(version), weights)
    assert store.latest() == version
    assert_same(store.fetch(Version(version)), weights)
    store.close()


def test_an_unknown_kind_names_the_known_ones(tmp_path):
    with pytest.raises(ConfigError, match="'floppy': choose one of memory, shared_memory, files"):
        open_store("floppy", str(tmp_path), 2)


def test_keeping_nothing_is_refused(open_at, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"weights.keep = 0: keep at least 1 version"):
        open_at(tmp_path, 0)


def test_buckets_may_be_kept_in_a_class_named_in_the_config(tmp_path):
    store = open_store("rollart.weights.blobs.files:FileBlobs", str(tmp_path), 2)
    store.publish(Version(1), filled(1))
    assert open_store("files", str(tmp_path), 2).latest() == 1


def test_a_package_that_is_missing_is_named(tmp_path):
    with pytest.raises(UserError, match=r"weights.store = 'nowhere:Blobs': no module nowhere here"):
        open_store("nowhere:Blobs", str(tmp_path), 2)


def test_an_fsspec_url_nobody_knows_is_one_clear_error():
    with pytest.raises(StorageError, match=r"floppy://a: Protocol not known: floppy; use .*s3://"):
        open_store("files", "floppy://a", 2)
