"""EngineActor: an engine in a process of its own, made from a config.

It is named as `module:Class` and made from JSON options, so any host can spawn it. It loads only
what an engine needs, because one engine fewer serves while its process starts.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from rollart.cluster.engine_server import EngineServer
from rollart.config.checks import engine_options
from rollart.config.loader import add_import_paths, parse_config
from rollart.inference.driver import EngineDriver
from rollart.inference.factory import open_engine
from rollart.types import EngineId, Json, Version
from rollart.weights.prefetch import open_source
from rollart.weights.store import open_store


class EngineActor(EngineServer):
    """An engine with its weights, in a process of its own."""

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
        add_import_paths(settings)
        engine = open_engine(
            settings.engine.name,
            options=engine_options(settings),
            model=Path(model),
            version=Version(version),
            threads=threads,
        )
        self._source = None
        if store is not None:
            self._source = open_source(
                open_store(**cast("dict[str, Any]", store)), wait_s=settings.weights.wait_s
            )
        super().__init__(
            EngineDriver(
                engine,
                id=EngineId(name),
                fetch=None if self._source is None else self._source.fetch,
                pulled_s=None if self._source is None else self._source.pulled_s,
                keep_kv=settings.syncing.keep_kv,
            )
        )

    async def close(self) -> None:
        """Serve no more and release the weights."""
        await super().close()
        if self._source is not None:
            self._source.close()
