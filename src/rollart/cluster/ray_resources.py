"""Resources: which node of a Ray cluster each worker of a run is on, asked for and written down.

The choice is `control.binding`'s; here the cluster is looked at and every change goes to
`bindings.json` in the run's directory, which `rollart pools` shows.

What a run puts on a Ray cluster: each actor is bound to a node, then started there.
"""

import json
from collections.abc import (
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rollart.atomic_files import write_file
from rollart.clock import SystemClock
from rollart.cluster.engine_supervisor import EnginePlace, Spawned
from rollart.cluster.local_host import thread_env
from rollart.cluster.ray_host import RayHandle, RayHost, on_node, together_on_node
from rollart.cluster.ray_session import (
    RayNode,
    here,
    nodes,
)
from rollart.config import Config, dump_toml
from rollart.config.places import (
    TRAINING,
    WorkerPlace,
    alive,
    capacities,
    engine_places,
    environment_place,
    trainer_place,
)
from rollart.config.pools import GPU
from rollart.control.placement import CPU, Binding, Bindings, Needs
from rollart.errors import PlacementError
from rollart.plugins import ENGINE_ACTOR, ENV_ACTOR
from rollart.ports import Handle
from rollart.training.distributed.ranks import RankGroup, RankPlan
from rollart.training.distributed.rendezvous import LOOPBACK, meeting_addresses
from rollart.training.options import trainer_arguments
from rollart.types import EngineId, Json, Version

RANK = "trainer-"
"""What the names of all ranks begin with."""


def bind_ranks(config: Config, resources: "Resources", *, prefix: str = RANK) -> list[Binding]:
    """Bind every rank to the best place there is now; none if there is not one for each."""
    names = [f"{prefix}{rank}" for rank in range(config.training.ranks)]
    place = trainer_place(config)
    try:
        return [resources.bind(name, place) for name in names]
    except PlacementError:
        for name in names:
            resources.release(name)
        raise


async def spawn_trainer(
    config: Config,
    host: RayHost,
    resources: "Resources",
    *,
    bindings: Sequence[Binding],
    options: Mapping[str, Json],
) -> Handle:
    """Make the trainer at its first version, each rank where it is bound."""
    known = {node.id: node.address for node in nodes()}
    ranks = _RankHost(host, resources, bindings)
    ranks.env = thread_env(config.training.threads)
    plan = RankPlan(
        options={
            **options,
            **trainer_arguments(
                config.training, config.algorithm, import_paths=config.run.import_paths
            ),
        },
        addresses=meeting_addresses([known.get(each.node, LOOPBACK) for each in bindings]),
    )
    return await RankGroup.start(ranks, plan)


class _RankHost:
    """Puts each rank where it is bound."""

    def __init__(self, host: RayHost, resources: "Resources", bindings: Sequence[Binding]) -> None:
        self._host = host
        self._resources = resources
        self._bindings = bindings
        self.env: Mapping[str, str] = {}

    async def spawn(
        self, target: str, options: Mapping[str, Json], *, own_process: bool, pool: str = ""
    ) -> RayHandle:
        """Make a rank."""
        del own_process, pool
        binding = self._bindings[int(str(options["rank"]))]
        return await self._host.spawn(
            target, options, asked=self._resources.asked(binding), env=self.env
        )


FILE = "bindings.json"


class Resources:
    """The ResourceManager: binds workers to nodes and knows what is alive."""

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
        """Take note of the nodes that are alive; return the workers whose node is gone."""
        nodes = list(nodes)
        self._with_gpus = frozenset(node.id for node in nodes if node.resources.get(GPU))
        self._bindings.observe(alive(self._config, nodes), now=self._clock.now())
        return self._bindings.lost()

    def bind(self, worker: str, place: WorkerPlace) -> Binding:
        """Find a worker the best place there is now, or say why there is none."""
        self.release(worker)
        binding = self._bindings.bind(
            worker, preferred=place.preferred, needs=place.needs, now=self._clock.now()
        )
        self._places[worker] = place
        self._write()
        return binding

    def release(self, worker: str) -> None:
        """Give a worker's place back, if it has one."""
        if self._places.pop(worker, None) is not None:
            self._bindings.release(worker, now=self._clock.now())
            self._write()

    def is_better(self, worker: str) -> bool:
        """Say whether a worker could now be in a pool it prefers to its own."""
        return worker in self._places and self._bindings.better(worker) is not None

    def bindings(self, prefix: str) -> list[Binding]:
        """Return where the workers are, or were, whose names begin like this."""
        found = [worker for worker in self._places if worker.startswith(prefix)]
        return [self._bindings.binding(worker) for worker in found]

    def put_back(self, bindings: Iterable[Binding], place: WorkerPlace) -> None:
        """Bind workers where they were, with what they were bound with: they did not get away."""
        for binding in bindings:
            self._bindings.place(binding, needs=place.needs, now=self._clock.now())
            self._places[binding.worker] = place
        self._write()

    def bind_beside(self, worker: str, other: str) -> Binding:
        """Put a worker that takes no units on the node of another one."""
        self.release(worker)
        if other not in self._places or other in self._bindings.lost():
            raise PlacementError(f"{worker} belongs beside {other}, which has no place now")
        beside = replace(self._bindings.binding(other), worker=worker)
        needs = Needs(units=0)
        self._bindings.place(beside, needs=needs, now=self._clock.now())
        self._places[worker] = WorkerPlace(preferred=beside.preferred, needs=needs)
        self._write()
        return beside

    def is_beside(self, worker: str, other: str) -> bool:
        """Say whether two workers are on one node, as far as both have a place."""
        if worker not in self._places or other not in self._places:
            return True
        return self._bindings.binding(worker).node == self._bindings.binding(other).node

    def asked(self, binding: Binding) -> Mapping[str, Any]:
        """Return what Ray is asked for to put a worker where it is bound.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnSettings:
    """What a run's actors begin with."""

    model: Path
    """Where the trainer begins, and the tokenizer is."""
    weights: Path
    """What the engines load first; a checkpoint of a resumed run, which may be pruned later."""
    version: Version
    """The version of `weights`."""
    store: Mapping[str, Json]
    """How the weight store is opened."""


@dataclass(slots=True, kw_only=True)
class Spawner:
    """Makes engines, environment workers and trainers of one run."""

    config: Config
    start: SpawnSettings
    resources: "Resources"
    host: RayHost = field(default_factory=lambda: RayHost(env=thread_env(1)))
    _places: Mapping[EngineId, WorkerPlace] = field(init=False)
    _lent: Mapping[str, str] = field(init=False)
    """Berths of engines on training hardware, with the rank each is beside."""
    _text: str = field(init=False)

    def __post_init__(self) -> None:
        files = self.start.weights.glob("*.safetensors")
        weight_bytes = sum(file.stat().st_size for file in files)
        self._places = engine_places(self.config, weight_bytes=weight_bytes)
        ranks = range(self.config.training.ranks if self.config.lending.enabled else 0)
        self._lent = {f"{self.config.engine.label}-lent-{n}": f"{RANK}{n}" for n in ranks}
        self._text = dump_toml(self.config)

    def berths(self) -> list[EnginePlace]:
        """Return a berth for each engine of the run."""
        serving = [EnginePlace(name=name) for name in self._places]
        return serving + [EnginePlace(name=name, is_lent=True) for name in self._lent]

    def is_lent(self, berth: str) -> bool:
        """Say whether a berth's engine is on training hardware."""
        return berth in self._lent

    def is_better(self, berth: str, engine: EngineId) -> bool:
        """Say whether a berth's engine could now be where it belongs and is not."""
        if berth in self._lent:
            return not self.resources.is_beside(engine, self._lent[berth])
        return self.resources.is_better(engine)

    async def engine(self, berth: str, engine: EngineId) -> Spawned:
        """Make an engine: of a lent berth beside its rank, else where it fits best now."""
        start = self.start
        is_first = start.weights.exists()
        options: dict[str, Json] = {
            "config": self._text,
            "name": engine,
            "model": str(start.weights if is_first else start.model),
            "version": int(start.version) if is_first else 0,
            "store": dict(start.store),
            "threads": 1,
        }
        if berth in self._lent:
            binding = self.resources.bind_beside(engine, self._lent[berth])
        else:
            binding = self.resources.bind(engine, self._places[EngineId(berth)])
        handle = await self.host.spawn(ENGINE_ACTOR, options, asked=self.resources.asked(binding))
        return Spawned(handle=handle, pool=TRAINING if berth in self._lent else binding.actual)

    async def environments(self, name: str, is_spare: bool) -> Handle:
        """Make an environment worker where it fits best now; a spare in the driver's node."""
        place = environment_place(self.config)
        asked = on_node(here(), resources={}, cpus=0)
        if place is not None and not is_spare:
            asked = self.resources.asked(self.resources.bind(name, place))
        model = str(self.start.model)
        options: dict[str, Json] = {"config": self._text, "name": name, "model": model}
        return await self.host.spawn(ENV_ACTOR, options, asked=asked)

    async def trainer(self, bindings: Sequence[Binding] | None = None) -> Handle:
        """Make the trainer at its first version, where its ranks are bound or fit best now."""
        options: dict[str, Json] = {
            "model": str(self.start.model),
            "store": dict(self.start.store),
        }
        if bindings is None:
            bindings = bind_ranks(self.config, self.resources)
        return await spawn_trainer(
            self.config, self.host, self.resources, bindings=bindings, options=options
        )
