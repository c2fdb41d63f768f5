"""Mooncake, really run: a full store, memory that dies with its lender, no master."""

import numpy as np
import pytest
from mooncake_parts import free_port, running_master, why_not

from rollart.errors import StorageError
from rollart.types import Version
from rollart.weights.store import open_store

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


def weights(value, count=100_000):
    return {"w": np.full(count, value, np.float32)}


def open_at(place):
    return open_store("mooncake", place, 2, bucket_bytes=2**20)


def test_a_full_store_refuses_and_keeps_what_it_has(places):
    store = open_at(f"{places.master}/full")
    store.publish(Version(1), weights(1.0))
    wanted = (
        r"cannot store 1048576 bytes of weights in the Mooncake store of .*: its memory is full"
    )
    with pytest.raises(StorageError, match=wanted):
        store.publish(Version(2), weights(2.0, count=50_000_000))
    assert store.latest() == 1
    assert store.fetch(Version(1))["w"].tolist() == weights(1.0)["w"].tolist()
    store.publish(Version(2), weights(2.0))
    assert store.latest() == 2
    store.close()


def test_stores_of_several_names_do_not_see_each_other(places):
    one, other = open_at(f"{places.master}/one"), open_at(f"{places.master}/other")
    one.publish(Version(1), weights(1.0))
    assert (one.latest(), other.latest()) == (1, None)
    one.close()
    other.close()


def test_a_lender_that_is_killed_is_one_clear_error(tmp_path):
    with running_master(tmp_path / "log") as (master, (_, lender)):
        store = open_at(master)
        store.publish(Version(1), weights(1.0))
        lender.kill()
        lender.wait()
        with pytest.raises(StorageError, match="cannot read head from the Mooncake store"):
            store.fetch(Version(1))
        store.close()


def test_no_master_is_one_clear_error():
    with pytest.raises(StorageError, match="is not an address of a mooncake_master: use host:port"):
        open_at("nowhere")
    with pytest.raises(StorageError, match=r"mooncake_master at .* does not answer"):
        open_at(f"127.0.0.1:{free_port()}")


def test_buckets_larger_than_its_buffer_are_refused_with_the_fix(places):
    store = open_store("mooncake", f"{places.master}/large", 2, bucket_bytes=2**27)
    with pytest.raises(StorageError, match=r"set weights.bucket_bytes to at most 67108864"):
        store.publish(Version(1), weights(1.0, count=20_000_000))
    assert store.latest() is None
    store.close()
