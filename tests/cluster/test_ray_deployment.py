"""A deployment on Ray before rollout begins: evaluation outlives engines that die or hang."""

import asyncio
import os
import signal
from contextlib import nullcontext
from unittest.mock import patch

from drivers import in_a_driver

from benchmarks.ray_runs.watched import WITHOUT_POOLS
from rollart.cluster import engine_supervisor, ray_deployment
from rollart.cluster.ray_deployment import open_ray
from rollart.config import add_import_paths, load_config
from rollart.pipelines.start_model import prepare_model
from rollart.pipelines.task_setups import make_setups


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def evaluate_without_engines(config, model, directory, warnings):
    async with open_ray(
        config, model=model, start=model, version=0, directory=directory, warn=warnings.append
    ) as deployment:
        evaluator = deployment.make_evaluator(make_setups(config, config.sampling))
        for how in (signal.SIGKILL, signal.SIGSTOP):
            engine = deployment.generators[deployment.infos[0].id]
            pid = engine.handle.pid
            os.kill(pid, how)
            engine._answer_s = 2.0  # the others may be slow: only this one never answers
            measured = await asyncio.wait_for(evaluator.run(4), 300)
            assert len(measured.trajectories) == 4
            while is_alive(pid):
                await asyncio.sleep(0.1)
        await evaluator.close()
        await deployment.trainer()


def outlive_engines(tmp_path):
    file = tmp_path / "config.toml"
    file.write_text(WITHOUT_POOLS)
    overrides = ["ray.address='auto'", "weights.store='ray'", "weights.wait_s=10"]
    config = load_config(file, [*overrides, f"model.cache='{tmp_path}'"])
    add_import_paths(config)
    model = prepare_model(config, lambda _text: None)
    warnings = []
    with (
        patch.object(ray_deployment, "connected", lambda _address: nullcontext()),  # it is already
        # A call that is under way when the engine stops waits so long.
        patch.object(ray_deployment, "_ANSWER_S", 20.0),
        patch.object(engine_supervisor, "_WATCH_S", 0.2),
    ):
        asyncio.run(evaluate_without_engines(config, model, tmp_path, warnings))
    assert [line.split(" (")[0] for line in warnings] == [
        "engine torch-0 is lost",
        "engine torch-0.1 is lost",
    ]
    assert "it hangs: stats was not answered within 2 s" in warnings[1]


def test_evaluation_before_the_run_outlives_engines_that_die_or_hang(cluster, tmp_path):
    in_a_driver(f"{__name__}:outlive_engines", cluster.address, tmp_path)
