"""The Ray host: actors on the machines of a cluster, behind the same port as the embedded ones.

Every actor is a `Shell` around a plain class named by `module:Class`: no class knows that it runs
on Ray. Coroutine methods run concurrently, others one at a time; a caller that needs calls in order
awaits each, for Ray may let one overtake another. Errors of the project keep their class; the first
call that finds an actor dead raises `ActorDiedError`. An actor that Ray does not start in time is a
`PlacementError`, not an endless wait.

`on_node` and `together_on_node` say what Ray is asked for to put an actor on the node it is bound
to.
"""

import asyncio
import contextlib
import inspect
import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)

from rollart.cluster.local_host import SerialExecutor, described_error
from rollart.cluster.local_worker import Actor, describe
from rollart.cluster.ray_blobs import FULL, explain
from rollart.errors import ActorDiedError, PlacementError, StorageError
from rollart.types import Json

PACKED = "packed"
"""The option under which a host finds what to reserve before it starts an actor."""
_NODE = "ray.io/node-id"
_CPU, _GPU = "CPU", "GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Units of one node that are reserved together or not at all.

    The actor takes the first unit; the others are held for ranks that it starts in its group.

    Example:
        >>> Packed(node="6f0c", units=({"GPU": 1.0, "CPU": 1.0}, {"GPU": 1.0}))

    """

    node: str
    units: tuple[Mapping[str, float], ...]

    def reserve(self) -> PlacementGroup:
        """Reserve the units; an actor in the group waits until they are free."""
        return placement_group(
            [dict(unit) for unit in self.units],
            strategy="STRICT_PACK",
            bundle_label_selector=[{_NODE: self.node} for _ in self.units],
        )

    def inside(self, group: PlacementGroup) -> dict[str, Any]:
        """Return the options of the actor in the group."""
        first = dict(self.units[0])
        return {
            "scheduling_strategy": PlacementGroupSchedulingStrategy(
                group, placement_group_bundle_index=0
            ),
            "num_cpus": first.pop(_CPU, 0.0),
            "num_gpus": first.pop(_GPU, 0.0),
            "resources": first,
        }


def on_node(
    node: str, *, resources: Mapping[str, float], cpus: float, gpus: float = 0.0
) -> dict[str, Any]:
    """Return Ray's options for an actor on one node, which holds these resources for it."""
    return {
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id=node, soft=False),
        "resources": dict(resources),
        "num_cpus": cpus,
        "num_gpus": gpus,
    }


def together_on_node(
    node: str, *, units: int, resources: Mapping[str, float], cpus: float, gpus: float
) -> dict[str, Any]:
    """Return Ray's options for an actor with several units of a node; its CPUs are in the first."""
    unit = {name: amount / units for name, amount in {**resources, _GPU: gpus}.items() if amount}
    first = unit | ({_CPU: cpus} if cpus else {})
    return {PACKED: Packed(node=node, units=(first, *[unit] * (units - 1)))}


PoolOptions = Callable[[str], Mapping[str, Any]]
"""Returns Ray's options for an actor in a pool."""
_CALLS_AT_ONCE = 10_000
_GRACE_S = 5.0
_PLACING_S = 120.0
"""Longest Ray may take to start an actor's process where it is bound."""
_MAKING_S = 1800.0
"""Longest the object in it may take to be made: it may load a large model."""


class Shell:
    """Holds one object in an actor's process."""

    def __init__(
        self,
        target: str,
        options: Mapping[str, Json],
        path: Sequence[str],
        env: Mapping[str, str],
    ) -> None:
        # Here, not as Ray's `runtime_env`: that would rule out the processes Ray keeps ready, and
        # nothing that reads the variables is loaded yet.
        os.environ.update(env)
        sys.path[:] = [*path, *(each for each in sys.path if each not in path)]
        self._target = target
        self._options = options
        self._actor: Actor | None = None

    async def started(self) -> tuple[str, Any]:
        """Return the id of this process, to show that it has started."""
        return "result", os.getpid()

    async def make(self) -> tuple[str, Any]:
        """Make the object; return this process's id."""
        try:
            self._actor = Actor(self._target, self._options)
        except Exception as error:
            return "error", describe(error)
        return "result", os.getpid()

    async def call(self, method: str, *args: object) -> tuple[str, Any]:
        """Run a public method, to its end if it is a coroutine."""
        try:
            assert self._actor is not None
            result = self._actor.call(method, args)
            return "result", (await result if inspect.isawaitable(result) else result)
        except Exception as error:
            return "error", describe(error)

    async def close(self) -> None:
        """Let the object close itself, if it can."""
        if self._actor is not None:
            ended = self._actor.close()
            if inspect.isawaitable(ended):
                await ended


_SHELL: Any = ray.remote(Shell)


class RayHandle:
    """An actor on Ray; it may be passed to other actors."""

    def __init__(self, actor: Any, target: str, pid: int = 0) -> None:
        self._actor = actor
        self._target = target
        self._is_dead = False
        self._is_ended = False
        self.pid = pid
        self.group: PlacementGroup | None = None
        """What is reserved for the actor until it ends; known only where it was spawned."""

    def __reduce__(self) -> tuple[Any, ...]:
        return RayHandle, (self._actor, self._target, self.pid)

    async def call(self, method: str, *args: object) -> Any:
        """Run a method of the actor and return its result."""
        if self._is_ended:  # Ray ends it later, until then it would still answer
            raise ActorDiedError(f"{self._target}.{method}: the actor was ended here")
        try:
            ref = self._actor.call.remote(method, *args)
        except FULL as error:
            raise StorageError(f"{self._target}.{method}: {explain(error)}") from error
        return await self._await(ref, method)

    async def started(self) -> None:
        """Wait until the actor's process has started."""
        await self._await(self._actor.started.remote(), "__init__")

    async def make(self) -> None:
        """Make the object in its process."""
        self.pid = await self._await(self._actor.make.remote(), "__init__")

    async def close(self) -> None:
        """End the actor: ask it, unless it was found dead, then kill it."""
        if not self._is_dead:
            with contextlib.suppress(RayError, TimeoutError):
                async with asyncio.timeout(_GRACE_S):
                    await self._actor.close.remote()
        await self.kill()

    async def kill(self) -> None:
        """End the actor at once."""
        self._is_ended = True
        # In a thread: Ray waits a minute for a lost cluster, and the loop must notice the loss.
        thread = SerialExecutor("ray-kill")
        ended = thread.submit(self._kill)
        thread.stop()
        with contextlib.suppress(RayError, RuntimeError, TimeoutError):
            async with asyncio.timeout(_GRACE_S):
                await ended

    def _kill(self) -> None:
        try:
            ray.kill(self._actor)
        finally:
            if self.group is not None:
                remove_placement_group(self.group)

    async def _await(self, ref: Any, method: str) -> Any:
        try:
            kind, value = await ref
        except FULL as error:
            raise StorageError(f"{self._target}.{method}: {explain(error)}") from error
        except RayError as error:
            self._is_dead = True  # or out of reach, where asking it to close would only take time
            why = str(error).strip().split("\n", 1)[0]
            raise ActorDiedError(f"{self._target}.{method}: the actor died: {why}") from error
        if kind == "error":
            raise described_error(self._target, method, value)
        return value


class RayHost:
    """Spawns actors on a cluster."""

    def __init__(
        self,
        place: PoolOptions | None = None,
        *,
        env: Mapping[str, str] | None = None,
        placing_s: float = _PLACING_S,
        making_s: float = _MAKING_S,
    ) -> None:
        """Take Ray's options for each pool, variables for the environment of all actors, and how
        long an actor may wait for its process and then take to be made.
        """
        self._place = place or _anywhere
        self._placing_s = placing_s
        self._making_s = making_s
        self._env = dict(env or {})
        self._handles: list[RayHandle] = []

    async def spawn(
        self,
        target: str,
        options: Mapping[str, Json],
        *,
        own_process: bool = True,
        pool: str = "",
        asked: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> RayHandle:
        """Make the actor `module:Class` with keyword `options` in a pool.

        `asked` replaces Ray's options for the pool.
        """
        del own_process  # on Ray every actor has one
        wanted: dict[str, Any] = {"num_cpus": 0, "max_concurrency": _CALLS_AT_ONCE}
        wanted |= self._place(pool) if asked is None else asked
        packed: Packed | None = wanted.pop(PACKED, None)
        group: PlacementGroup | None = None
        if packed is not None:
            group = packed.reserve()
            wanted |= packed.inside(group)
        shell = _SHELL.options(**wanted)
        variables = self._env | dict(env or {})
        actor = shell.remote(target, options, sys.path, variables)
        handle = RayHandle(actor, target)
        handle.group = group
        self._handles.append(handle)
        try:
            said = _unplaced(target, wanted, packed, self._placing_s)
            await _within(self._placing_s, handle.started(), said)
            said = f"{target}: its process has started, but it was not made in {self._making_s:g} s"
            await _within(self._making_s, handle.make(), said)
        except BaseException:
            with contextlib.suppress(ValueError):  # the host was closed meanwhile
                self._handles.remove(handle)
            await handle.kill()
            raise
        return handle

    async def close(self) -> None:
        """End all actors."""
        handles, self._handles = self._handles, []
        await asyncio.gather(*(handle.close() for handle in handles), return_exceptions=True)


async def _within(seconds: float, work: Awaitable[None], said: str) -> None:
    try:
        async with asyncio.timeout(seconds):
            await work
    except TimeoutError as error:
        raise PlacementError(said) from error


def _anywhere(_pool: str) -> Mapping[str, Any]:
    return {}


def _unplaced(
    target: str, wanted: Mapping[str, Any], packed: Packed | None, waited_s: float
) -> str:
    asked: Counter[str] = Counter()
    if packed is None:
        asked.update({"CPU": wanted["num_cpus"], "GPU": wanted.get("num_gpus", 0.0)})
        asked.update(wanted.get("resources", {}))
        node = getattr(wanted.get("scheduling_strategy"), "node_id", None)
    else:
        for unit in packed.units:
            asked.update(unit)
        node = packed.node
    text = ", ".join(f"{amount:g} {name}" for name, amount in asked.items() if amount) or "nothing"
    where = "a node" if node is None else f"node {node[:12]}"
    return (
        f"{target}: Ray did not start it within {waited_s:g} s on {where} with {text}: something "
        "else holds that there (see `ray status`), or the node is too slow"
    )
