"""The engines' side: buckets are here before they are asked for, and waiting has an end."""

import threading
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from conditions import wait_until

from rollart.errors import CorruptError, InvariantError, PrunedError, StorageError
from rollart.types import Version
from rollart.weights.blobs.files import FileBlobs
from rollart.weights.buckets import BucketStore
from rollart.weights.layout import specs_of
from rollart.weights.prefetch import Direct, Prefetcher, open_source
from rollart.weights.store import MemoryStore


class Gated(FileBlobs):
    """Files that are written only as far as the test allows."""

    def __init__(self, directory):
        super().__init__(directory)
        self.allowed = threading.Semaphore(1000)
        self.read: list[str] = []

    def put(self, key, data):
        self.allowed.acquire()
        super().put(key, data)

    def get(self, key):
        value = super().get(key)
        self.read.append(key.partition(".")[2] or key)
        return value


class Flaky(FileBlobs):
    """Files that cannot be read while they are told so; a part of a key says which."""

    def __init__(self, directory):
        super().__init__(directory)
        self.failing: dict[str, int] = {}
        self.error: Exception = StorageError("the link is down")
        self.read: list[str] = []

    def get(self, key):
        for part, times in self.failing.items():
            if part in key and times:
                self.failing[part] = times - 1
                raise self.error
        value = super().get(key)
        self.read.append(key.partition(".")[2] or key)
        return value


def weights(value):
    return {"w": np.full(1000, value, np.float32)}


@pytest.fixture
def blobs(tmp_path):
    return Gated(tmp_path)


@pytest.fixture
def writer(tmp_path, blobs):
    return BucketStore(blobs, bucket_bytes=1024)


@pytest.fixture
def seen(tmp_path):
    return Gated(tmp_path)


@pytest.fixture
def puller(seen):
    puller = Prefetcher(BucketStore(seen), wait_s=600)
    yield puller
    puller.close()


def test_buckets_are_pulled_while_the_rest_is_still_being_pushed(blobs, writer, seen, puller):
    blobs.allowed = threading.Semaphore(4)  # head, layout, two buckets of four
    pushing = threading.Thread(target=writer.publish, args=(Version(1), weights(1.0)))
    pushing.start()
    wait_until(lambda: {"layout", "0", "1"} <= set(seen.read))
    assert writer.latest() is None
    blobs.allowed.release(1000)
    fetched = puller.fetch(Version(1))
    pushing.join()
    assert fetched["w"].tolist() == [1.0] * 1000
    assert [seen.read.count(bucket) for bucket in "0123"] == [1, 1, 1, 1]
    assert puller.pulled_s(Version(1)) > 0


def test_a_version_nobody_asked_for_yet_is_here_already(writer, seen, puller):
    writer.publish(Version(1), weights(1.0))
    wait_until(lambda: puller.pulled_s(Version(1)) > 0)
    count = len(seen.read)
    assert puller.fetch(Version(1))["w"].tolist() == [1.0] * 1000
    assert "manifest" not in seen.read[count:]


def test_the_version_before_is_kept_for_engines_that_come_later(writer, puller):
    for version in (1, 2):
        writer.publish(Version(version), weights(version))
        assert puller.fetch(Version(version))["w"][0] == version
    assert puller.pulled_s(Version(1)) > 0
    assert puller.fetch(Version(1))["w"][0] == 1


def test_what_is_waited_for_goes_before_what_is_being_pushed(blobs, writer, seen, puller):
    for version in (1, 2):
        writer.publish(Version(version), weights(version))
    assert puller.fetch(Version(2))["w"][0] == 2
    blobs.allowed = threading.Semaphore(3)
    pushing = threading.Thread(target=writer.publish, args=(Version(3), weights(3.0)))
    pushing.start()
    wait_until(lambda: writer.head().writing is not None and seen.read.count("layout") > 1)
    assert puller.fetch(Version(1))["w"][0] == 1
    blobs.allowed.release(1000)
    pushing.join()
    assert puller.fetch(Version(3))["w"][0] == 3


def test_a_push_that_was_given_up_is_forgotten(tmp_path, blobs, writer, seen, puller):
    blobs.allowed = threading.Semaphore(3)

    def fail_later():
        with pytest.raises(ZeroDivisionError):
            writer.publish(Version(1), weights(1.0))

    blobs.put = lambda key, data: 1 / 0 if key.endswith(".2") else Gated.put(blobs, key, data)
    blobs.allowed.release(1000)
    fail_later()
    del blobs.put
    writer.publish(Version(1), weights(7.0))
    assert puller.fetch(Version(1))["w"].tolist() == [7.0] * 1000


def test_a_version_published_again_is_not_the_one_that_was_prefetched(writer, puller):
    writer.publish(Version(1), weights(1.0))
    wait_until(lambda: puller.pulled_s(Version(1)) > 0)
    writer.publish(Version(1), weights(5.0))
    assert puller.fetch(Version(1))["w"][0] == 5


def test_a_version_that_was_pruned_meanwhile_is_still_had(tmp_path, puller):
    writer = BucketStore(FileBlobs(tmp_path), keep=1)
    for version in (1, 2):
        writer.publish(Version(version), weights(version))
        wait_until(lambda version=version: puller.pulled_s(Version(version)) > 0)
    assert puller.fetch(Version(1))["w"][0] == 1


def test_changes_are_applied_to_what_is_here(tmp_path, seen, puller):
    writer = BucketStore(FileBlobs(tmp_path), bucket_bytes=1024, delta=True)
    for version in range(4):
        writer.publish(Version(version), weights(1.0 + version / 1024))
        assert puller.fetch(Version(version))["w"][0] == np.float32(1.0 + version / 1024)
    assert [seen.read.count(bucket) for bucket in "0123"] == [4, 4, 4, 4]


def test_a_reader_without_the_base_gets_it_first(tmp_path):
    writer = BucketStore(FileBlobs(tmp_path), bucket_bytes=1024, delta=True, keep=1)
    for version in range(4):
        writer.publish(Version(version), weights(1.0 + version))
    late = Prefetcher(BucketStore(FileBlobs(tmp_path)))
    assert late.fetch(Version(3))["w"].tolist() == [4.0] * 1000
    late.close()


def test_a_version_that_never_arrives_is_one_clear_error(tmp_path, writer):
    writer.publish(Version(1), weights(1.0))
    puller = Prefetcher(BucketStore(FileBlobs(tmp_path)), wait_s=0.1)
    wanted = (
        rf"weights version 2 did not arrive in the directory {tmp_path} within 0.1 s; "
        r"its newest version is 1: check that the trainer is alive"
    )
    with pytest.raises(StorageError, match=wanted):
        puller.fetch(Version(2))
    puller._wait_s = 60.0
    assert puller.fetch(Version(1))["w"][0] == 1
    puller.close()


def test_damage_is_told_to_whoever_waits(tmp_path, writer):
    writer.publish(Version(1), weights(1.0))
    (path,) = tmp_path.glob("1-*.3")
    path.write_bytes(b"short")
    puller = Prefetcher(BucketStore(FileBlobs(tmp_path)), wait_s=600)
    with pytest.raises(CorruptError, match=r"bucket 3 of weights version .* is damaged"):
        puller.fetch(Version(1))
    writer.publish(Version(2), weights(2.0))
    assert puller.fetch(Version(2))["w"][0] == 2
    puller.close()


@pytest.fixture
def flaky(tmp_path):
    return Flaky(tmp_path)


def open_puller(flaky, *, wait_s):
    puller = Prefetcher(BucketStore(flaky), wait_s=wait_s)
    return closing(puller)


@pytest.mark.parametrize("error", [StorageError("the link is down"), OSError("no route")])
def test_a_store_that_fails_for_a_while_is_asked_again(writer, flaky, error):
    writer.publish(Version(1), weights(1.0))
    flaky.error = error
    flaky.failing = {"head": 3, "layout": 2, ".1": 3, "manifest": 2}
    with open_puller(flaky, wait_s=60) as puller:
        assert puller.fetch(Version(1))["w"].tolist() == [1.0] * 1000
    assert [flaky.read.count(bucket) for bucket in "0123"] == [1, 1, 1, 1]


def test_a_store_that_does_not_answer_is_told_when_the_patience_ends(tmp_path, writer, flaky):
    writer.publish(Version(1), weights(1.0))
    flaky.failing = {".2": 10**6}
    wanted = (
        rf"weights version 1 could not be read from the directory {tmp_path} within 1 s: "
        r"the link is down; check the store, or raise weights\.wait_s"
    )
    with open_puller(flaky, wait_s=1.0) as puller:
        with pytest.raises(StorageError, match=wanted):
            puller.fetch(Version(1))
        flaky.failing = {"head": 10**6}
        with pytest.raises(StorageError, match=wanted):
            puller.fetch(Version(1))
        flaky.failing = {}
        puller._wait_s = 60.0
        assert puller.fetch(Version(1))["w"][0] == 1


def test_a_bucket_that_comes_into_sight_late_is_had(tmp_path, writer):
    writer.publish(Version(1), weights(1.0))
    (path,) = tmp_path.glob("1-*.2")
    hidden = path.rename(tmp_path / "hidden")
    shown = threading.Timer(0.2, hidden.rename, [path])
    shown.start()
    with closing(Prefetcher(BucketStore(FileBlobs(tmp_path)), wait_s=60)) as puller:
        assert puller.fetch(Version(1))["w"].tolist() == [1.0] * 1000
    shown.join()


def test_a_broken_invariant_is_told_at_once(writer, flaky):
    writer.publish(Version(1), weights(1.0))
    flaky.error = InvariantError("a wrong key")
    for part in ("head", "layout"):
        flaky.failing = {part: 10**6}
        with (
            open_puller(flaky, wait_s=60) as puller,
            pytest.raises(InvariantError, match="a wrong key"),
        ):
            puller.fetch(Version(1))


def test_a_version_asked_for_when_only_newer_ones_are_left_says_so_at_once(tmp_path):
    writer = BucketStore(FileBlobs(tmp_path), keep=1)
    for version in (1, 2):
        writer.publish(Version(version), weights(version))
    with (
        closing(Prefetcher(BucketStore(FileBlobs(tmp_path)), wait_s=600)) as puller,
        pytest.raises(PrunedError, match=r"weights version 1 is no longer in .*newest is 2"),
    ):
        puller.fetch(Version(1))


def test_a_version_that_is_never_seen_before_newer_ones_is_not_waited_for(tmp_path):
    writer = BucketStore(FileBlobs(tmp_path), keep=1)
    writer.publish(Version(1), weights(1))
    later = threading.Timer(0.2, writer.publish, [Version(5), weights(5)])
    later.start()
    with (
        closing(Prefetcher(BucketStore(FileBlobs(tmp_path)), wait_s=600)) as puller,
        pytest.raises(PrunedError, match=r"weights version 2 is no longer in .*newest is 5"),
    ):
        puller.fetch(Version(2))
    later.join()


def test_a_version_that_a_resumed_run_writes_again_is_waited_for(tmp_path):
    writer = BucketStore(FileBlobs(tmp_path), keep=1)
    writer.publish(Version(5), weights(5))
    with closing(Prefetcher(BucketStore(FileBlobs(tmp_path)), wait_s=60)) as puller:
        is_asked, is_open = threading.Event(), threading.Event()

        def arrays():
            is_asked.set()
            assert is_open.wait(60)
            yield from weights(2.0).items()

        specs = specs_of(weights(2.0))
        resumed = threading.Thread(target=writer.stream, args=(Version(2), specs, arrays()))
        resumed.start()
        assert is_asked.wait(60)
        found = list[Any]()
        asking = threading.Thread(target=lambda: found.append(puller.fetch(Version(2))))
        asking.start()
        is_open.set()
        asking.join()
        resumed.join()
    assert found[0]["w"].tolist() == [2.0] * 1000


def test_a_closed_puller_says_so(tmp_path):
    puller = Prefetcher(BucketStore(FileBlobs(tmp_path)))
    puller.close()
    puller.close()
    with pytest.raises(
        StorageError, match="cannot fetch weights version 1: the prefetcher is closed"
    ):
        puller.fetch(Version(1))


def test_stores_that_are_already_here_are_asked_directly():
    store = MemoryStore()
    source = open_source(store, wait_s=0.05)
    assert isinstance(source, Direct)
    store.publish(Version(1), weights(1.0))
    assert source.fetch(Version(1))["w"][0] == 1
    assert source.pulled_s(Version(1)) >= 0
    wanted = r"weights version 2 did not arrive in this process within 0.05 s"
    with pytest.raises(StorageError, match=wanted):
        source.fetch(Version(2))
    source.close()


def test_a_store_that_is_already_here_says_at_once_that_a_version_was_pruned():
    store = MemoryStore(keep=1)
    for version in (1, 2):
        store.publish(Version(version), weights(version))
    with pytest.raises(PrunedError, match=r"weights version 1 is no longer in .*newest is 2"):
        open_source(store, wait_s=600).fetch(Version(1))
