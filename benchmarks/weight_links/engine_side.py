"""The engines' side of the link: a torch engine that decodes all the time and changes weights.

Lines in, one answer each:
- `stop`: suspend the engine (the naive order begins like this);
- `naive VERSION`: pull the version, nothing of it being here, load it and go on;
- `overlapped VERSION`: what a run does at `Published`: suspend, update, resume.
"""

import asyncio
import json
import sys
import time
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from transformers import Qwen3Config

from benchmarks.weight_links.ray_nodes import joined
from benchmarks.weight_links.trainer_side import PROBE
from rollart.inference.driver import EngineDriver
from rollart.inference.torch.engine import TorchEngine
from rollart.inference.torch.options import TorchEngineOptions
from rollart.ports import Array
from rollart.types import EngineId, Request, Sampling, TrajectoryId, Version
from rollart.weights.buckets import BucketStore
from rollart.weights.prefetch import open_source
from rollart.weights.store import open_store

SESSIONS = 4
PROMPT_TOKENS = 32
NEW_TOKENS = 64


class Side:
    """One engine, its proxy and the two orders of changing its weights."""

    def __init__(self, told: Mapping[str, Any]) -> None:
        stores = {
            order: open_store(kind, place, 2) for order, (kind, place) in told["engines"].items()
        }
        naive = stores["naive"]
        assert isinstance(naive, BucketStore)
        self._naive = naive
        self._memory: Array | None = None
        self._source = open_source(stores["overlapped"])
        self._order = "overlapped"
        self._probe: Array = np.empty(0)
        engine = TorchEngine(
            model_config=Qwen3Config(**told["model"]).to_dict(),
            weights=random_weights(told["shapes"]),
            options=TorchEngineOptions(rows=SESSIONS, cached_sessions=0, max_length=128, threads=1),
            version=Version(0),
        )
        self._proxy = EngineDriver(
            engine, id=EngineId("bench"), fetch=self._fetch, pulled_s=self._pulled_s
        )
        self._tokens = 0

    def _fetch(self, version: Version) -> Mapping[str, Array]:
        is_naive = self._order == "naive"
        weights = self._pull(version) if is_naive else self._source.fetch(version)
        self._probe = weights[PROBE]
        return weights

    def _pull(self, version: Version) -> Mapping[str, Array]:
        """Pull a whole version now, into the same memory each time."""
        stored = self._naive.head().visible(version)
        assert stored is not None
        whole = self._naive.complete(self._naive.begin(stored, None, spare=self._memory))
        self._memory = whole.flat
        return whole.arrays

    def _pulled_s(self, version: Version) -> float:
        return self._source.pulled_s(version)

    async def run(self) -> None:
        """Decode and answer until the input ends."""
        loop = asyncio.get_running_loop()
        driving = [asyncio.create_task(self._proxy.run())]
        driving += [asyncio.create_task(self._talk(each)) for each in range(SESSIONS)]
        await asyncio.sleep(1)
        print("ready", flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            print(json.dumps(await self._answer(*line.split())), flush=True)
        for task in driving:
            task.cancel()
        await asyncio.gather(*driving, return_exceptions=True)
        self._source.close()

    async def _answer(self, do: str, version: str = "0") -> dict[str, float]:
        tokens, self._tokens = self._tokens, 0
        start_s = time.perf_counter()
        await self._proxy.suspend()
        if do == "stop":
            return {"tokens": tokens}
        self._order = do
        stood_s = time.perf_counter()
        took = await self._proxy.update(Version(int(version)))
        await self._proxy.resume()
        stopped_s = time.perf_counter() - stood_s
        return {
            **took,
            "suspend_s": stood_s - start_s,
            "stopped_s": stopped_s,
            "tokens": tokens,
            "checksum": zlib.crc32(self._probe.data),
        }

    async def _talk(self, session: int) -> None:
        turn = 0
        while True:
            prompt = tuple((session * 31 + turn * 7 + each) % 256 for each in range(PROMPT_TOKENS))
            done = await self._proxy.generate(
                Request(
                    session=TrajectoryId(session),
                    turn=turn,
                    domain="weights",
                    tokens=prompt,
                    sampling=Sampling(max_tokens=NEW_TOKENS),
                    stop=(),
                    seed=session * 1000 + turn,
                )
            )
            self._proxy.forget(TrajectoryId(session))
            self._tokens += len(done.tokens)
            turn += 1


def random_weights(shapes: Mapping[str, list[int]]) -> dict[str, Array]:
    draw = np.random.default_rng(0)
    return {
        name: draw.standard_normal(shape, np.float32) * np.float32(0.02)
        for name, shape in shapes.items()
    }


if __name__ == "__main__":
    asked = json.loads(Path(sys.argv[1]).read_text())
    with joined(asked["ray"], "engines"):
        asyncio.run(Side(asked).run())
