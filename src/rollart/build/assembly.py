"""Assembly: the parts of a run on the embedded host, made in order and closed in reverse."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rollart.config import Config
from rollart.config.local_pools import TRAINING, local_engines
from rollart.control.routing import Router, Routing
from rollart.engines.torch.engine import TorchEngine
from rollart.engines.torch.options import TorchEngineOptions
from rollart.errors import InvariantError
from rollart.models.files import load_config
from rollart.models.loading import load_weights
from rollart.models.renderer import ChatRenderer
from rollart.models.tokenizer_loading import load_tokenizer
from rollart.ports import Array, Handle, WeightStore
from rollart.runtime.host import EmbeddedHost, thread_env
from rollart.runtime.proxy import LLMProxy
from rollart.training.addresses import LOOPBACK
from rollart.training.ranks import RankGroup, RankPlan
from rollart.types import EngineId, EngineInfo, Json, Version
from rollart.weights.directory import remove_directory, remove_leftovers, shared_directory
from rollart.weights.opening import open_store
from rollart.weights.pulling import open_source


@dataclass(frozen=True, slots=True, kw_only=True)
class Engines:
    """The inference side of a run."""

    proxies: Mapping[EngineId, LLMProxy]
    pools: Mapping[EngineId, str]
    """Where each engine belongs."""
    lent: frozenset[EngineId]
    """Those that run on the trainer's cores while it waits; they start suspended."""
    renderer: ChatRenderer

    @property
    def infos(self) -> tuple[EngineInfo, ...]:
        """The engines as the scheduler knows them."""
        return tuple(
            EngineInfo(
                id=id_,
                pool=self.pools[id_],
                version=proxy.version,
                lent=id_ in self.lent,
            )
            for id_, proxy in self.proxies.items()
        )

    def router(self, rule: Routing, *, affinity: bool) -> Router:
        """Return a router over the engines that serve now; by domain if the mode has affinity."""
        rule = rule if affinity else replace(rule, affinity={})
        return Router(rule, engines=[(info.id, info.pool) for info in self.infos if not info.lent])


@contextmanager
def open_weights(config: Config) -> Generator[tuple[WeightStore, dict[str, Json]]]:
    """Open the weight store between trainer and engines; gives it and how to open it elsewhere."""
    remove_leftovers()
    options = config.weights
    directory = None if options.place else shared_directory(config.run.name)
    kind, place, keep = options.store, options.place or str(directory), config.kept_versions
    size, delta = options.bucket_bytes, options.delta
    try:
        with closing(open_store(kind, place, keep, bucket_bytes=size, delta=delta)) as store:
            buckets: dict[str, Json] = {"bucket_bytes": size, "delta": delta}
            yield store, {"kind": kind, "directory": place, "keep": keep, **buckets}
    finally:
        if directory is not None:
            remove_directory(directory)


@asynccontextmanager
async def open_engines(
    config: Config, *, model: Path, version: Version, store: WeightStore | None
) -> AsyncGenerator[Engines]:
    """Run the engines on a checkpoint's weights until the block ends.

    Where training hardware is lent, one more stands by for the times its cores are idle.
    """
    renderer = ChatRenderer(load_tokenizer(model))
    weights: Mapping[str, Array] = load_weights(model)
    model_config = load_config(model)
    pools = local_engines(config)
    options = _with_threads(config, engines=len(pools))
    is_lending = config.lending.enabled and store is not None
    lent = [EngineId(f"{config.engine.name}-lent")] if is_lending else []
    pools |= dict.fromkeys(lent, TRAINING)
    source = None if store is None else open_source(store, wait_s=config.weights.wait_s)
    proxies: dict[EngineId, LLMProxy] = {}
    for id_ in pools:
        engine = TorchEngine(
            model_config=model_config,
            weights=weights,
            options=options,
            version=version,
        )
        proxies[id_] = LLMProxy(
            engine,
            id=id_,
            fetch=_refuse if source is None else source.fetch,
            pulled_s=None if source is None else source.pulled_s,
            keep_kv=config.syncing.keep_kv,
        )
    for id_ in lent:
        await proxies[id_].suspend()
    loops = [asyncio.create_task(proxy.run()) for proxy in proxies.values()]
    try:
        yield Engines(proxies=proxies, pools=pools, lent=frozenset(lent), renderer=renderer)
    finally:
        for loop in loops:
            loop.cancel()
        await asyncio.gather(*loops, return_exceptions=True)
        if source is not None:
            source.close()


def _refuse(version: Version) -> Mapping[str, Array]:
    raise InvariantError(f"engines without a weight store were told to load version {version}")


def _with_threads(config: Config, *, engines: int) -> TorchEngineOptions:
    """Give the engines the cores the trainer leaves: more threads than cores only fight."""
    options = config.engine.torch
    if options.threads or options.device != "cpu":
        return options
    cores = len(os.sched_getaffinity(0)) - config.training.threads
    return replace(options, threads=max(1, cores // engines))


@asynccontextmanager
async def open_trainer(
    config: Config, *, model: Path, store: dict[str, Json]
) -> AsyncGenerator[Handle]:
    """Run the trainer until the block ends: in processes of its own if the weights can cross."""
    host = EmbeddedHost(env=thread_env(config.training.threads))
    options: dict[str, Json] = {
        "model": str(model),
        "options": json.loads(json.dumps(asdict(config.training))),
        "store": store,
    }
    try:
        plan = RankPlan(
            options=options,
            addresses=[LOOPBACK] * config.training.ranks,
            own_process=config.weights.store != "memory",
        )
        group = await RankGroup.start(host, plan)
        try:
            yield group
        finally:
            await group.close()
    finally:
        await host.close()
