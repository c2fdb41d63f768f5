"""An environment worker in a process elsewhere, made from a config.

It is named as `module:Class` and made from JSON options, so any host can make it. It has a
tokenizer and no model, so it loads no torch: attempts wait for its process to start.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rollart.build.tasks import make_setups, task_streams
from rollart.clock import SystemClock
from rollart.config import Config, add_import_paths
from rollart.config.loading import parse_config
from rollart.control.routing import Router
from rollart.models.renderer import ChatRenderer
from rollart.models.tokenizer_loading import load_tokenizer
from rollart.ports import Renderer
from rollart.runtime.env_manager import Access, Setup
from rollart.runtime.env_server import EnvServer
from rollart.runtime.env_worker import Ends, EnvWorker
from rollart.runtime.gate import gate_for
from rollart.runtime.switchboard import Switchboard
from rollart.types import Version


class EnvActor(EnvServer):
    """An environment worker in a process of its own."""

    def __init__(self, *, config: str, name: str, model: str) -> None:
        settings = parse_config(config)
        add_import_paths(settings)
        setups = make_setups(settings, settings.sampling)
        renderer = ChatRenderer(load_tokenizer(Path(model)))
        super().__init__(
            lambda ends: _make_worker(settings, setups, renderer=renderer, ends=ends), name=name
        )


def _make_worker(
    config: Config, setups: Mapping[str, Setup], *, renderer: Renderer, ends: Ends
) -> tuple[EnvWorker, Switchboard]:
    """Return what runs attempts in a process of its own, with engines yet to be opened."""
    mode = config.mode
    rule = config.routing if mode.affinity else replace(config.routing, affinity={})
    switchboard = Switchboard(
        Router(rule, engines=()), generators={}, now=SystemClock().now, on_cut=ends.cut
    )
    access = Access(
        renderer=renderer,
        switchboard=switchboard,
        gate=gate_for(mode.lockstep),
        # What grows too old is cancelled by the scheduler, which alone knows the versions.
        is_fresh=_always,
    )
    worker = EnvWorker(
        setups=setups,
        access=access,
        tasks=task_streams(config)[0].task,
        ends=ends,
        score_elsewhere=mode.score == "after_rollout",
    )
    return worker, switchboard


def _always(_version: Version) -> bool:
    return True
