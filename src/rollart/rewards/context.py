"""What the process offers reward functions: a sandbox, and models that answer a judge.

A reward function cannot carry such things in its options, which are JSON, and may not import the
packages that make them. So the process that runs functions says once how they are opened, and a
function that needs one takes it from here. A process that something else started says so in a
function that its environment names: `ROLLART_REWARD_SETUP=module:function`. A sandbox is opened at
the first need and belongs to the event loop it was opened on: what it runs is awaited there.
"""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias
from weakref import WeakKeyDictionary

from rollart.errors import ConfigError, ScoreError
from rollart.plugins import load_module
from rollart.ports import Sandbox

Ask: TypeAlias = Callable[[Sequence[Mapping[str, str]]], Awaitable[str]]
"""Answers a conversation (objects of `role` and `content`): a chat model, wherever it is."""

SET_UP_VARIABLE = "ROLLART_REWARD_SETUP"
"""The environment variable that names the function a process calls at the first need."""

_lock = threading.RLock()
"""Held while the process is set up: calls in other threads wait until it is."""
_done: set[str] = set()
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
        _set_up(lambda: bool(_opening))
        if not _opening:
            fix = f"name in {SET_UP_VARIABLE} a module:function that calls use_sandbox"
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
    _set_up(lambda: name in _models)
    if name not in _models:
        known = ", ".join(sorted(_models)) or "none"
        raise ScoreError(f"no model is called {name!r} in this process: {known}", is_final=True)
    return _models[name]


def _set_up(is_offered: Callable[[], bool]) -> None:
    """Call the function the environment names, once: how a process started elsewhere is told.

    One that fails is called again at the next need.
    """
    target = os.environ.get(SET_UP_VARIABLE, "")
    with _lock:
        if is_offered() or not target or target in _done:
            return
        module_name, _, function_name = target.rpartition(":")
        found = getattr(load_module(module_name, field=SET_UP_VARIABLE), function_name, None)
        if not callable(found):
            fix = f"{module_name} has no function {function_name}"
            raise ConfigError(SET_UP_VARIABLE, target, fix)
        found()
        _done.add(target)
