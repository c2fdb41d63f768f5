"""The contract of the WeightStore port, over every store."""

import gc
import threading
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
from rollart.weights.opening import open_store

DTYPES = ["<f4", "<f8", "<f2", "<u2", "<i8", "|i1", "|b1", "<c8"]
STORES = ["memory", "shared_memory", *PLACES]


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
    store = open_store("rollart.weights.files:FileBlobs", str(tmp_path), 2)
    store.publish(Version(1), filled(1))
    assert open_store("files", str(tmp_path), 2).latest() == 1


def test_a_package_that_is_missing_is_named(tmp_path):
    with pytest.raises(UserError, match=r"weights.store = 'nowhere:Blobs' cannot be used: No modu"):
        open_store("nowhere:Blobs", str(tmp_path), 2)


def test_an_fsspec_url_nobody_knows_is_one_clear_error():
    with pytest.raises(StorageError, match=r"fsspec cannot open floppy://a: Protocol not known"):
        open_store("files", "floppy://a", 2)
