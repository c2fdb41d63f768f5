"""What the process offers reward functions: a sandbox, and models that answer a judge.

A reward function cannot carry such things in its options, which are JSON, and may not import the
packages that make them. So the process that runs functions says once how they are opened, and a
function that needs one takes it from here. A sandbox is opened at the first need and belongs to
the event loop it was opened on, because what it runs is awaited there.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias, cast
from weakref import WeakKeyDictionary

from rollart.errors import ConfigError, ScoreError
from rollart.ports import Sandbox
from rollart.rewards.loading import load_module
from rollart.types import Json

Ask: TypeAlias = Callable[[Sequence[Mapping[str, str]]], Awaitable[str]]
"""Answers a conversation (objects of `role` and `content`): a chat model, wherever it is."""

_opening: list[Callable[[], Sandbox]] = []
_open: WeakKeyDictionary[asyncio.AbstractEventLoop, Sandbox] = WeakKeyDictionary()
_models: dict[str, Ask] = {}


def use_sandbox(opening: Callable[[], Sandbox] | None) -> None:
    """Say how this process opens a sandbox for reward functions; None takes it back."""
    _opening[:] = [] if opening is None else [opening]


def get_sandbox() -> Sandbox:
    """Return the sandbox of the running event loop, opened if it is the first need."""
    loop = asyncio.get_running_loop()
    if loop not in _open:
        if not _opening:
            fix = "the process that runs it must call rollart.rewards.context.use_sandbox"
            raise ScoreError(
                f"scoring code needs a sandbox and there is none: {fix}", is_final=True
            )
        try:
            _open[loop] = _opening[0]()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise ScoreError(f"the sandbox could not be opened: {reason}") from error
    return _open[loop]


async def close_sandbox() -> None:
    """Close the sandbox of the running event loop, if one was opened."""
    sandbox = _open.pop(asyncio.get_running_loop(), None)
    if sandbox is not None:
        await sandbox.close()


def use_model(name: str, ask: Ask | None) -> None:
    """Offer judges a chat model under a name; None takes it back."""
    if ask is None:
        _models.pop(name, None)
    else:
        _models[name] = ask


def get_model(name: str) -> Ask:
    """Return the chat model offered under a name."""
    if name not in _models:
        known = ", ".join(sorted(_models)) or "none"
        raise ScoreError(f"no model is called {name!r} in this process: {known}", is_final=True)
    return _models[name]


def set_up(target: str, *, options: Mapping[str, Json]) -> None:
    """Call `module:function` with options: how a process started by name gets what it offers."""
    module_name, _, function_name = target.rpartition(":")
    found = getattr(load_module(module_name, field="reward.set_up"), function_name, None)
    if not callable(found):
        raise ConfigError("reward.set_up", target, f"{module_name} has no function {function_name}")
    cast("Callable[..., object]", found)(**options)
