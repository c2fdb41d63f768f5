"""What a cluster cannot do: one clear message each, and nothing is lost of what there was."""

import asyncio
import re

import numpy as np
import pytest
from drivers import in_a_driver

from benchmarks.ray_runs.watched import CONFIG, WatchedRun
from rollart.cluster.ray_blobs import RayBlobs
from rollart.cluster.ray_host import RayHost
from rollart.config import dump_toml, load_config
from rollart.errors import StorageError
from rollart.pipelines.start_model import prepare_model
from rollart.plugins import ENGINE_ACTOR

LARGE = 150 * 2**20
"""More than the object store of a simulated node holds."""


def test_an_impossible_placement_says_who_holds_what(cluster, tmp_path):
    run = WatchedRun(tmp_path, cluster.address)
    try:
        code, said = run.finish(seconds=120)
    finally:
        run.end()
    assert code == 2
    (message,) = [line for line in said.splitlines() if "error" in line]
    assert re.fullmatch(
        r"error: bandwidth-0 needs 1 unit on one node with 0\.\d+ GB together; every pool that "
        r"could take it is full: bandwidth \(1 of 1 units in use by compute-0\)",
        message,
    )
    assert "Traceback" not in said


def fill_the_store(_tmp_path):
    blobs = RayBlobs("full")
    blobs.put("kept", b"one")
    with pytest.raises(StorageError) as caught:
        blobs.put("large", np.zeros(LARGE, dtype=np.uint8).data)
    assert str(caught.value).startswith(
        f"the Ray object store (full): cannot store {LARGE} bytes as large: "
        "Ray's object store is full ("
    )
    assert str(caught.value).endswith("or lower weights.keep or batching.groups_per_step")
    assert "\n" not in str(caught.value)
    assert bytes(blobs.get("kept")) == b"one"

    async def run():
        host = RayHost()
        echo = await host.spawn("host_actors:Echo", {"greeting": "hi"})
        with pytest.raises(StorageError) as caught:
            await echo.call("echo", np.zeros(LARGE, dtype=np.uint8))
        assert str(caught.value).startswith("host_actors:Echo.echo: Ray's object store is full (")
        assert await echo.call("greet", "you") == "hi, you"
        await host.close()

    asyncio.run(run())


def await_a_version(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text(CONFIG)
    overrides = ["weights.store='ray'", "weights.wait_s=0.5", f"model.cache='{tmp_path}'"]
    config = load_config(file, overrides)
    model = prepare_model(config, lambda _text: None)
    store = {"kind": "ray", "directory": "never", "keep": 2, "bucket_bytes": 2**20, "delta": False}

    async def run():
        host = RayHost()
        options = {"config": dump_toml(config), "name": "a", "model": str(model)}
        options |= {"version": 0, "store": store, "threads": 1}
        engine = await host.spawn(ENGINE_ACTOR, options)
        assert await engine.call("start") == 0
        with pytest.raises(StorageError) as caught:
            await engine.call("update", 7)
        assert str(caught.value) == (
            "weights version 7 did not arrive in the Ray object store (never) within 0.5 s; "
            "it has no version: check that the trainer is alive and publishes there, or raise "
            "weights.wait_s"
        )
        assert (await engine.call("stats"))["sampled_tokens"] == 0
        await host.close()

    asyncio.run(run())


def reach_both_limits(tmp_path):
    fill_the_store(tmp_path)
    await_a_version(tmp_path)


def test_a_full_store_and_a_version_that_never_arrives_are_one_message_each(cluster, tmp_path):
    in_a_driver(f"{__name__}:reach_both_limits", cluster.address, tmp_path)
