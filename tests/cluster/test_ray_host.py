"""The Ray host keeps the contract of the embedded one; large values go through the store."""

import asyncio
import os
import signal

import numpy as np
import pytest
from conditions import BOUND_S
from drivers import in_a_driver

from rollart.cluster.local_host import EmbeddedHost
from rollart.cluster.ray_blobs import RayBlobs
from rollart.cluster.ray_host import RayHost
from rollart.errors import (
    ActorDiedError,
    ActorError,
    ConfigError,
    InvariantError,
    PlacementError,
    StorageError,
    UserError,
)
from rollart.types import StepReport
from rollart.weights.buckets import BucketStore

ECHO = "host_actors:Echo"


async def keep_the_contract(host, tmp_path):
    closed = tmp_path / f"closed-{type(host).__name__}"
    options = {"greeting": "hi", "closed_file": str(closed)}
    echo = await host.spawn(ECHO, options, own_process=True)
    assert await echo.call("greet", "you") == "hi, you"
    assert await echo.call("report") == StepReport(version=3, metrics={"loss": 0.5})
    array = np.arange(300_000, dtype=np.float32)
    assert np.array_equal((await echo.call("echo", array))[0], array)
    noted = await asyncio.gather(*(echo.call("note", n) for n in range(5)))
    assert sorted(noted) == [1, 2, 3, 4, 5]
    assert (await echo.call("where"))[0] != os.getpid()
    for kind, error, text in (
        ("config", ConfigError, "trainer.lr = [1, 'x']: must be positive"),
        ("user", UserError, "you can fix this"),
        ("storage", StorageError, "disk is full"),
        ("invariant", InvariantError, "broken"),
        ("other", ActorError, "host_actors:Echo.fail raised KeyError: 'other'"),
    ):
        with pytest.raises(error) as caught:
            await echo.call("fail", kind)
        assert str(caught.value).startswith(text)
    with pytest.raises(ActorError, match="private"):
        await echo.call("_secret")
    with pytest.raises(ConfigError, match="choose another"):
        await host.spawn("host_actors:Unmakable", {"size": 3}, own_process=True)
    with pytest.raises(ConfigError, match="there is no module"):
        await host.spawn("nowhere:Nothing", {}, own_process=True)
    mortal = await host.spawn(ECHO, {}, own_process=True)
    os.kill((await mortal.call("where"))[0], signal.SIGKILL)
    with pytest.raises(ActorDiedError):
        await asyncio.wait_for(mortal.call("greet", "you"), 2 * BOUND_S)
    await mortal.close()
    await echo.close()
    assert closed.read_text() == "closed"
    with pytest.raises(ActorError):
        await asyncio.wait_for(echo.call("greet", "you"), 2 * BOUND_S)


def test_the_embedded_host_keeps_the_contract(tmp_path):
    async def run():
        host = EmbeddedHost()
        try:
            await keep_the_contract(host, tmp_path)
        finally:
            await host.close()

    asyncio.run(run())


def use_ray_host(tmp_path):
    async def run():
        host = RayHost()
        try:
            await keep_the_contract(host, tmp_path)
            first, second, messenger = await asyncio.gather(
                host.spawn("ray_actors:Meeting", {}),
                host.spawn(ECHO, {"greeting": "hey"}),
                host.spawn("ray_actors:Messenger", {}),
            )
            met = asyncio.gather(first.call("meet"), first.call("meet"))
            assert await asyncio.wait_for(met, 2 * BOUND_S) == [first.pid] * 2
            assert await messenger.call("ask", second, "greet", "you") == "hey, you"
            nice = [os.getpriority(os.PRIO_PROCESS, pid) for pid in (0, first.pid)]
            assert nice[0] == nice[1]
            impatient = RayHost(placing_s=1.0)
            with pytest.raises(PlacementError) as caught:
                await impatient.spawn(ECHO, {}, asked={"resources": {"H800": 7}})
            assert "Ray did not start it within 1 s on a node with 7 H800" in str(caught.value)
            with pytest.raises(PlacementError, match=r"started, but it was not made in 0\.2 s$"):
                await RayHost(making_s=0.2).spawn("ray_actors:Slow", {})
        finally:
            await host.close()

    asyncio.run(run())


def use_object_store(_tmp_path):
    blobs = RayBlobs("contract")
    with pytest.raises(KeyError):
        blobs.get("nothing")
    blobs.put("a", b"one")
    blobs.put("a", memoryview(b"two"))
    assert bytes(RayBlobs("contract").get("a")) == b"two"
    blobs.delete("a")
    blobs.delete("a")
    with pytest.raises(KeyError):
        blobs.get("a")
    store = BucketStore(blobs, keep=2, bucket_bytes=64 * 1024)
    weights = {"w": np.arange(100_000, dtype=np.float32), "b": np.ones(3, dtype=np.float32)}
    for version in (1, 2, 3):
        store.publish(version, {name: value + version for name, value in weights.items()})
    reader = BucketStore(RayBlobs("contract"), keep=2, bucket_bytes=64 * 1024)
    assert reader.latest() == 3
    fetched = reader.fetch(2)
    assert all(np.array_equal(fetched[name], value + 2) for name, value in weights.items())
    with pytest.raises(KeyError):
        reader.fetch(1)


def test_the_ray_host_keeps_the_contract(cluster, tmp_path):
    in_a_driver(f"{__name__}:use_ray_host", cluster.address, tmp_path)


def test_weights_lie_in_the_object_store_until_they_are_pruned(cluster, tmp_path):
    in_a_driver(f"{__name__}:use_object_store", cluster.address, tmp_path)
