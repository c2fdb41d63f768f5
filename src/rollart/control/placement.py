"""Placement: which pool each worker runs in, the one it prefers or a replacement.

A worker names pools, best first. It gets the first that is large enough for it and has room on one
node; if none has, another that may replace it: devices for devices, CPUs for CPUs, a pool with a
role only for one that has it too. The preferred pool is kept beside the one in use, so that a
worker can return when its pool has room again. Machines come and go: `observe` says what is alive,
and a worker whose node is lost stays lost until it is bound again or released.

`PoolCapacity` is what a pool was declared with, `Needs` what a worker needs; together they say
whether that could ever fit.

Invariant: the workers of a node never hold more units than are alive on it, nor those of a pool
more than it was declared with. `check` asserts it. No clock, no I/O: `cluster` starts the
processes that are decided here.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from rollart.errors import InvariantError, PlacementError

CPU = "CPU"
"""The hardware class of pools without devices."""
ANY = "any"
"""The role of pools that do whatever they are given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What one worker takes, all of it on one node."""

    units: int = 1
    """0: a place on any of the pool's nodes."""
    memory_gb: float = 0.0
    """Of all its units together; a worker without units has what the node has."""

    def __str__(self) -> str:
        memory = f" with {self.memory_gb:,.4g} GB together" if self.memory_gb else ""
        return f"{_count(self.units)} on one node{memory}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolCapacity:
    """A pool as it was declared."""

    name: str
    hardware: str
    """Its hardware class."""
    units: int
    """Devices, or for CPU pools workers, that it has when all its nodes are alive."""
    memory_gb_per_unit: float
    units_per_node: int = 0
    """Most units of one node; 0: the whole pool may be one."""
    resource: str = ""
    """What its units are called on a node; pools with the same name for them may share nodes."""
    role: str = ANY
    """What alone it does."""

    @property
    def is_cpu(self) -> bool:
        """Whether it has no devices."""
        return self.hardware == CPU

    @property
    def most(self) -> int:
        """Units that one worker can have."""
        return min(self.units, self.units_per_node or self.units)

    def fits(self, needs: Needs) -> bool:
        """Say whether the pool, all of it free, could take a worker."""
        offered = needs.units * self.memory_gb_per_unit
        return needs.units <= self.most and (not needs.units or needs.memory_gb <= offered)

    def stands_in_for(self, preferred: Sequence["PoolCapacity"]) -> bool:
        """Say whether a worker that prefers these pools may be in this one in their place."""
        is_like = not preferred or self.is_cpu in {pool.is_cpu for pool in preferred}
        return is_like and self.role in {ANY, *(pool.role for pool in preferred)}

    def offer(self, needs: Needs) -> str:
        """Say what there is of what a worker needs and the pool has too little of."""
        if needs.units > self.most:
            return f"{self.name} has {_count(self.most)} on a node"
        offered = needs.units * self.memory_gb_per_unit
        each = f"{needs.units} x {self.memory_gb_per_unit:,.4g}"
        return f"{self.name} offers {each} = {offered:,.4g} GB"

    def key(self, node: str) -> tuple[str, str]:
        """Return what its units of a node are counted under."""
        return (self.resource or self.hardware, node)

    def by_node(self, alive: int | Mapping[str, int]) -> dict[str, int]:
        """Return units by node; where nodes are not known, as nodes of the declared size."""
        if not isinstance(alive, int):
            return {node: units for node, units in alive.items() if units > 0}
        size = self.units_per_node or max(alive, 1)
        starts = range(0, alive, size)
        return {f"{self.name}/{start // size}": min(size, alive - start) for start in starts}


def _count(units: int) -> str:
    return f"{units} unit" if units == 1 else f"{units} units"


_SHOWN = 6
"""Workers that an error names as holding a pool."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Where a worker is, and where it would rather be."""

    worker: str
    preferred: tuple[str, ...]
    """Pools, best first."""
    actual: str
    node: str
    since_s: float
    until_s: float | None = None
    """When it was lost, moved or released; None: it still holds."""

    @property
    def is_at_home(self) -> bool:
        """Whether it is in the pool it likes best."""
        return self.preferred[:1] == (self.actual,)


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRow:
    """A pool and who is in it, for display."""

    name: str
    hardware: str
    units: int
    alive: int
    used: int
    bindings: tuple[Binding, ...]
    lost: tuple[str, ...]
    """Workers it held when their node was lost, not yet bound again."""


@dataclass(slots=True, kw_only=True, eq=False)
class _Held:
    binding: Binding
    needs: Needs
    is_lost: bool = False


class Bindings:
    """The ResourceManager's state: pools, what of them is alive, and who holds what."""

    def __init__(self, pools: Iterable[PoolCapacity]) -> None:
        self._pools = {pool.name: pool for pool in pools}
        self._workers: dict[str, _Held] = {}
        self._alive: dict[str, dict[str, int]] = {}
        """Units of each pool by node."""
        self._capacity: dict[tuple[str, str], int] = {}
        """Units of each resource and node, which pools may share."""
        self._on_node: Counter[tuple[str, str]] = Counter()
        """Units in use, by resource and node."""
        self._in_pool: Counter[str] = Counter()
        self._ended: list[Binding] = []
        self.observe({name: pool.units for name, pool in self._pools.items()}, now=0.0)

    def observe(self, alive: Mapping[str, int | Mapping[str, int]], *, now: float) -> None:
        """Say how many units of each pool are alive, by node where nodes are known.

        A pool that is left out has no nodes. Of workers that no longer fit on their node, the
        newest are lost.
        """
        self._check_names(alive, "the cluster reports")
        self._alive = {n: pool.by_node(alive.get(n, 0)) for n, pool in self._pools.items()}
        self._capacity = {}
        for name, nodes in self._alive.items():
            for node, units in nodes.items():
                key = self._pools[name].key(node)
                self._capacity[key] = max(units, self._capacity.get(key, 0))
        self._on_node.clear()
        self._in_pool.clear()
        for held in self._workers.values():
            if held.is_lost:
                continue
            pool, node = self._pools[held.binding.actual], held.binding.node
            if node in self._alive[pool.name] and self._free(pool, node) >= held.needs.units:
                self._take(held)
            else:
                held.is_lost = True
                self._end(held, now)

    def bind(self, worker: str, *, preferred: tuple[str, ...], needs: Needs, now: float) -> Binding:
        """Give a worker a place, or say why there is none."""
        if worker in self._workers:
            raise InvariantError(f"{worker} is bound already")
        self._check_names(preferred, f"{worker} prefers")
        pool, node = self._choose(worker, preferred, needs)
        binding = Binding(worker=worker, preferred=preferred, actual=pool, node=node, since_s=now)
        self._workers[worker] = held = _Held(binding=binding, needs=needs)
        self._take(held)
        return binding

    def release(self, worker: str, *, now: float) -> None:
        """Give a worker's place back."""
        held = self._workers.pop(worker)
        if not held.is_lost:
            self._give_back(held)
            self._end(held, now)

    def lost(self) -> tuple[str, ...]:
        """Return the workers whose node was lost and that have no new place yet."""
        return tuple(worker for worker, held in self._workers.items() if held.is_lost)

    def better(self, worker: str) -> str | None:
        """Return the pool a worker prefers to its own and that has room; None if there is none."""
        held = self._workers[worker]
        for name in held.binding.preferred:
            if name == held.binding.actual and not held.is_lost:
                return None
            if self._room(self._pools[name], held.needs) is not None:
                return name
        return None

    def place(self, binding: Binding, *, needs: Needs, now: float) -> None:
        """Bind a worker to the node a binding names: it never left that, or is wanted there.

        If there is no room for it, it is lost.
        """
        worker = binding.worker
        if worker in self._workers:
            self.release(worker, now=now)
        pool, node = self._pools[binding.actual], binding.node
        again = replace(binding, since_s=now, until_s=None)
        is_there = node in self._alive[pool.name] and pool.fits(needs)
        has_room = is_there and needs.units <= min(
            self._free(pool, node), pool.units - self._in_pool[pool.name]
        )
        self._workers[worker] = held = _Held(binding=again, needs=needs, is_lost=not has_room)
        if has_room:
            self._take(held)

    def binding(self, worker: str) -> Binding:
        """Return where a worker is, or was when it was lost."""
        return self._workers[worker].binding

    def records(self) -> tuple[Binding, ...]:
        """Return every binding there was, in the order they ended, then those that hold."""
        current = (held.binding for held in self._workers.values() if not held.is_lost)
        return (*self._ended, *current)

    def table(self) -> tuple[PoolRow, ...]:
        """Return each pool and who is in it."""
        rows: list[PoolRow] = []
        for name, pool in self._pools.items():
            held = [each for each in self._workers.values() if each.binding.actual == name]
            row = PoolRow(
                name=name,
                hardware=pool.hardware,
                units=pool.units,
                alive=self._units_alive(name),
                used=self._in_pool[name],
                bindings=tuple(each.binding for each in held if not each.is_lost),
                lost=tuple(each.binding.worker for each in held if each.is_lost),
            )
            rows.append(row)
        return tuple(rows)

    def check(self) -> None:
        """Assert the invariants."""
        on_node: Counter[tuple[str, str]] = Counter()
        in_pool: Counter[str] = Counter()
        for held in self._workers.values():
            if held.is_lost:
                continue
            pool, node = self._pools[held.binding.actual], held.binding.node
            on_node[pool.key(node)] += held.needs.units
            in_pool[pool.name] += held.needs.units
            assert node in self._alive[pool.name], held
            assert on_node[pool.key(node)] <= self._capacity[pool.key(node)], held
            assert in_pool[pool.name] <= pool.units, held
            assert pool.fits(held.needs), held
        assert +self._on_node == +on_node
        assert +self._in_pool == +in_pool

    def _choose(self, worker: str, preferred: tuple[str, ...], needs: Needs) -> tuple[str, str]:
        """Return the pool and the node a worker gets."""
        names = [*preferred, *self._stand_ins(preferred)]
        for name in names:
            node = self._room(self._pools[name], needs)
            if node is not None:
                return name, node
        raise PlacementError(self._why_not(worker, names, needs))

    def _stand_ins(self, preferred: tuple[str, ...]) -> list[str]:
        """Return the pools that may take the place of preferred ones, in the order declared."""
        wanted = [self._pools[name] for name in preferred]
        return [
            name
            for name, pool in self._pools.items()
            if name not in preferred and pool.stands_in_for(wanted)
        ]

    def _room(self, pool: PoolCapacity, needs: Needs) -> str | None:
        """Return the fullest node of a pool that has room; None if there is none.

        Workers that take no units are spread instead, so that one node's end leaves some of them.
        """
        if not pool.fits(needs) or self._in_pool[pool.name] + needs.units > pool.units:
            return None
        if not needs.units:
            guests = Counter(
                held.binding.node
                for held in self._workers.values()
                if not held.needs.units and not held.is_lost
            )
            return min(self._alive[pool.name], key=lambda node: guests[node], default=None)
        free = {node: self._free(pool, node) for node in self._alive[pool.name]}
        enough = [node for node, units in free.items() if units >= needs.units]
        return min(enough, key=lambda node: free[node], default=None)

    def _free(self, pool: PoolCapacity, node: str) -> int:
        return self._capacity[pool.key(node)] - self._on_node[pool.key(node)]

    def _take(self, held: _Held) -> None:
        pool, node = self._pools[held.binding.actual], held.binding.node
        self._on_node[pool.key(node)] += held.needs.units
        self._in_pool[pool.name] += held.needs.units

    def _give_back(self, held: _Held) -> None:
        pool, node = self._pools[held.binding.actual], held.binding.node
        self._on_node[pool.key(node)] -= held.needs.units
        self._in_pool[pool.name] -= held.needs.units

    def _end(self, held: _Held, now: float) -> None:
        self._ended.append(replace(held.binding, until_s=now))

    def _units_alive(self, name: str) -> int:
        return min(sum(self._alive[name].values()), self._pools[name].units)

    def _check_names(self, names: Iterable[str], who: str) -> None:
        for name in names:
            if name not in self._pools:
                known = ", ".join(self._pools) or "none"
                raise PlacementError(f"{who} pool {name!r}: no such pool; there is {known}")

    def _why_not(self, worker: str, names: Iterable[str], needs: Needs) -> str:
        """Say why none of these pools takes a worker: too small, without nodes, or full."""
        pools = [self._pools[name] for name in names]
        asked = f"{worker} needs {needs}"
        large = [pool for pool in pools if pool.fits(needs)]
        if not large:
            offers = "; ".join(pool.offer(needs) for pool in pools) or "there is none"
            return f"{asked}; no pool is large enough: {offers}"
        there = [pool for pool in large if self._units_alive(pool.name)]
        if not there:
            dead = ", ".join(pool.name for pool in large)
            return f"{asked}; no node is alive of the pools that are large enough: {dead}"
        return f"{asked}; every pool that could take it is full: " + "; ".join(
            f"{pool.name} ({self._in_pool[pool.name]} of {self._units_alive(pool.name)} units "
            f"in use{self._holders(pool)})"
            for pool in there
        )

    def _holders(self, pool: PoolCapacity) -> str:
        """Name who is on a pool's nodes."""
        nodes = {pool.key(node) for node in self._alive[pool.name]}
        workers = [
            worker
            for worker, held in self._workers.items()
            if not held.is_lost and self._pools[held.binding.actual].key(held.binding.node) in nodes
        ]
        more = f" and {len(workers) - _SHOWN} more" if len(workers) > _SHOWN else ""
        return f" by {', '.join(workers[:_SHOWN])}{more}" if workers else ""
