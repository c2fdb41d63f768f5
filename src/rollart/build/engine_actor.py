"""An engine in a process elsewhere, made from a config.

It is named as `module:Class` and made from JSON options, so any host can make it. What it loads is
what it needs: while its process starts, an engine fewer serves.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from rollart.config.loading import parse_config
from rollart.engines.torch.engine import TorchEngine
from rollart.errors import InvariantError
from rollart.models.files import load_config
from rollart.models.loading import load_weights
from rollart.ports import Array
from rollart.runtime.engine_server import EngineServer
from rollart.runtime.proxy import LLMProxy
from rollart.types import EngineId, Json, Version
from rollart.weights.opening import open_store
from rollart.weights.pulling import open_source


class EngineActor(EngineServer):
    """A torch engine with its weights, in a process of its own."""

    def __init__(
        self,
        *,
        config: str,
        name: str,
        model: str,
        version: int,
        store: Mapping[str, Json] | None,
        threads: int,
    ) -> None:
        settings = parse_config(config)
        options = settings.engine.torch
        engine = TorchEngine(
            model_config=load_config(Path(model)),
            weights=load_weights(Path(model)),
            options=replace(options, threads=options.threads or threads),
            version=Version(version),
        )
        self._source = None
        if store is not None:
            self._source = open_source(
                open_store(**cast("dict[str, Any]", store)), wait_s=settings.weights.wait_s
            )
        super().__init__(
            LLMProxy(
                engine,
                id=EngineId(name),
                fetch=_refuse if self._source is None else self._source.fetch,
                pulled_s=None if self._source is None else self._source.pulled_s,
                keep_kv=settings.syncing.keep_kv,
            )
        )

    async def close(self) -> None:
        """Serve no more and let go of the weights."""
        await super().close()
        if self._source is not None:
            self._source.close()


def _refuse(version: Version) -> Mapping[str, Array]:
    raise InvariantError(f"an engine without a weight store was told to load version {version}")
