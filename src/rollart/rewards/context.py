"""What a process offers its reward functions: a sandbox, and chat models for judges.

A function's options are JSON and cannot hold such objects, and reward modules may not import the
packages that create them. So the process registers once how to open them, and functions get them
here. A process started by something else runs a setup function first, named by the environment:
`ROLLART_REWARD_SETUP=module:function`. A sandbox is opened on first use, one for each event loop,
because its awaits belong to that loop.
"""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeAlias
from weakref import WeakKeyDictionary

from rollart.errors import ScoreError
from rollart.plugins import load_object
from rollart.ports import Sandbox

Ask: TypeAlias = Callable[[Sequence[Mapping[str, str]]], Awaitable[str]]
"""A chat model: takes messages with `role` and `content`, returns the answer's text."""

SET_UP_VARIABLE = "ROLLART_REWARD_SETUP"
"""The environment variable that names the setup function, called on first use."""

_lock = threading.RLock()
"""Held during setup, so that calls in other threads wait for its end."""
_done: set[str] = set()
_opening: list[Callable[[], Sandbox]] = []
_open: WeakKeyDictionary[asyncio.AbstractEventLoop, Sandbox] = WeakKeyDictionary()
_models: dict[str, Ask] = {}


def use_sandbox(opening: Callable[[], Sandbox] | None) -> None:
    """Register how this process opens a sandbox for reward functions; None removes it."""
    _opening[:] = [] if opening is None else [opening]


def get_sandbox() -> Sandbox:
    """Return the sandbox of the running event loop, opening it on first use."""
    loop = asyncio.get_running_loop()
    if loop not in _open:
        _set_up(lambda: bool(_opening))
        if not _opening:
            fix = f"set {SET_UP_VARIABLE} to a module:function that calls use_sandbox"
            raise ScoreError(
                f"scoring code needs a sandbox, but this process has none: {fix}", is_final=True
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
    """Register a chat model for judges under a name; None removes it."""
    if ask is None:
        _models.pop(name, None)
    else:
        _models[name] = ask


def get_model(name: str) -> Ask:
    """Return the chat model registered under a name."""
    _set_up(lambda: name in _models)
    if name not in _models:
        known = ", ".join(sorted(_models)) or "none"
        message = f"this process has no model called {name!r}; its models: {known}"
        raise ScoreError(message, is_final=True)
    return _models[name]


def _set_up(is_offered: Callable[[], bool]) -> None:
    """Call the setup function named by the environment, once; after an error, try again later."""
    target = os.environ.get(SET_UP_VARIABLE, "")
    with _lock:
        if is_offered() or not target or target in _done:
            return
        load_object(target, field=SET_UP_VARIABLE, what="function")()
        _done.add(target)
