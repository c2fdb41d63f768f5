"""Resources: which node of a Ray cluster each worker of a run is bound to.

`control.placement` chooses the node; this module reads the cluster, translates a binding into what
Ray is asked for, and writes every change to `bindings.json` in the run's directory, which
`rollart pools` shows. A worker's units count as taken from `bind` until `release`, so two workers
are never bound to the same units.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rollart.atomic_files import write_file
from rollart.clock import SystemClock
from rollart.cluster.ray_host import on_node, together_on_node
from rollart.cluster.ray_session import RayNode
from rollart.config import Config
from rollart.config.places import WorkerPlace, alive, capacities
from rollart.config.pools import GPU
from rollart.control.placement import CPU, Binding, Bindings, Needs
from rollart.errors import PlacementError

FILE = "bindings.json"


class Resources:
    """Binds workers to nodes and knows which nodes are alive."""

    def __init__(self, config: Config, directory: Path, nodes: Iterable[RayNode]) -> None:
        self._config = config
        self._path = directory / FILE
        self._clock = SystemClock()
        self._bindings = Bindings(capacities(config))
        self._places: dict[str, WorkerPlace] = {}
        self._with_gpus: frozenset[str] = frozenset()
        """Nodes whose devices Ray knows of."""
        self.observe(nodes)

    def observe(self, nodes: Iterable[RayNode]) -> tuple[str, ...]:
        """Record the nodes that are alive; return the workers whose node is lost."""
        nodes = list(nodes)
        self._with_gpus = frozenset(node.id for node in nodes if node.resources.get(GPU))
        self._bindings.observe(alive(self._config, nodes), now=self._clock.now())
        return self._bindings.lost()

    def bind(self, worker: str, place: WorkerPlace) -> Binding:
        """Bind a worker where it fits best now; raises PlacementError if it fits nowhere."""
        self.release(worker)
        binding = self._bindings.bind(
            worker, preferred=place.preferred, needs=place.needs, now=self._clock.now()
        )
        self._places[worker] = place
        self._write()
        return binding

    def release(self, worker: str) -> None:
        """Release a worker's units, if it is bound."""
        if self._places.pop(worker, None) is not None:
            self._bindings.release(worker, now=self._clock.now())
            self._write()

    def is_better(self, worker: str) -> bool:
        """Say whether a worker could now run in a pool it prefers to its own."""
        return worker in self._places and self._bindings.better(worker) is not None

    def bindings(self, prefix: str) -> list[Binding]:
        """Return the bindings of the workers whose names begin like this."""
        found = [worker for worker in self._places if worker.startswith(prefix)]
        return [self._bindings.binding(worker) for worker in found]

    def put_back(self, bindings: Iterable[Binding], place: WorkerPlace) -> None:
        """Bind workers as these bindings say, with what the place needs."""
        for binding in bindings:
            self._bindings.place(binding, needs=place.needs, now=self._clock.now())
            self._places[binding.worker] = place
        self._write()

    def bind_beside(self, worker: str, other: str) -> Binding:
        """Bind a worker that takes no units to the node of another one."""
        self.release(worker)
        if other not in self._places or other in self._bindings.lost():
            raise PlacementError(f"{worker} belongs beside {other}, which is not bound now")
        beside = replace(self._bindings.binding(other), worker=worker)
        needs = Needs(units=0)
        self._bindings.place(beside, needs=needs, now=self._clock.now())
        self._places[worker] = WorkerPlace(preferred=beside.preferred, needs=needs)
        self._write()
        return beside

    def is_beside(self, worker: str, other: str) -> bool:
        """Say whether two workers are on one node, or one of them is not bound."""
        if worker not in self._places or other not in self._places:
            return True
        return self._bindings.binding(worker).node == self._bindings.binding(other).node

    def asked(self, binding: Binding) -> Mapping[str, Any]:
        """Return Ray's options for a worker where it is bound.

        A worker without units asks for nothing: what it would share with the others of its node
        is not counted here, so Ray might keep it waiting for it. One with devices asks for as many
        GPUs where Ray knows of them: it is shown those and no others. Several units are reserved
        together.
        """
        place = self._places[binding.worker]
        pool = self._config.pools.get(binding.actual)
        units = place.needs.units
        if pool is None or not units:
            return on_node(binding.node, resources={}, cpus=0)
        wanted = dict(pool.request(units=units, engine_cpus=self._config.ray.engine_cpus))
        cpus, gpus = wanted.pop(CPU, 0.0), wanted.pop(GPU, 0.0)
        if not pool.is_cpu and binding.node in self._with_gpus:
            gpus = float(units)
        if units > 1 and (wanted or gpus):
            return together_on_node(
                binding.node, units=units, resources=wanted, cpus=cpus, gpus=gpus
            )
        return on_node(binding.node, resources=wanted, cpus=cpus, gpus=gpus)

    def _write(self) -> None:
        rows = [asdict(binding) for binding in self._bindings.records()]
        write_file(self._path, (json.dumps(rows, indent=1) + "\n").encode())
