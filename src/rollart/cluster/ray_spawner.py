"""What a run spawns on a Ray cluster: each worker is bound to a node, then started there.

`control.placement` chooses the node. This module reads the cluster (`Resources`), asks Ray for
what a binding says, and writes every change to `bindings.json` in the run's directory, which
`rollart pools` shows. No unit is bound twice, because a worker's units count as taken from `bind`
until `release`; those of a rank until its process has ended.

Engines and environment workers are bound one by one, the ranks of the trainer together: all of
them have a place or none has. To move the trainer home, successors of all ranks are bound beside
the ranks; where they do not all fit, the trainer saves, ends and is made again from its save.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rollart.atomic_files import write_file
from rollart.clock import SystemClock
from rollart.cluster.engine_supervisor import SpawnedEngine
from rollart.cluster.local_host import thread_env
from rollart.cluster.ray_host import RayHandle, RayHost, on_node, together_on_node
from rollart.cluster.ray_session import RayNode, here, nodes
from rollart.cluster.trainer_supervisor import TrainerClient, TrainerSupervisor
from rollart.config import Config, dump_toml
from rollart.config.checks import open_policy
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
from rollart.training.distributed.ranks import RankGroup, RankPlan, rank_of
from rollart.training.distributed.rendezvous import LOOPBACK, meeting_addresses
from rollart.training.options import trainer_arguments
from rollart.training_ports import RemoteTrainer
from rollart.types import EngineId, Json, Version

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
        wanted = dict(pool.request(units=units))
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


RANK = "trainer-"
"""What the names of all ranks begin with."""
_SUCCESSOR = "next-trainer-"
"""What the names of ranks begin with that will be the trainer's after it has moved."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnSettings:
    """What a run's actors begin with.

    Example:
        >>> SpawnSettings(
        ...     model=Path("models/tiny"),
        ...     weights=Path("runs/first/checkpoints/step-000040"),
        ...     version=Version(40),
        ...     store={"kind": "ray", "directory": "first", "keep": 3},
        ... )

    """

    model: Path
    """The model the trainer begins with; it has the tokenizer too."""
    weights: Path
    """What engines load first; in a resumed run a checkpoint, which may be pruned later."""
    version: Version
    """The version of `weights`."""
    store: Mapping[str, Json]
    """How the weight store is opened."""


@dataclass(slots=True, kw_only=True)
class Spawner:
    """Spawns the engines, environment workers and trainers of one run."""

    config: Config
    start: SpawnSettings
    resources: Resources
    host: RayHost = field(default_factory=lambda: RayHost(env=thread_env(1)))
    _places: Mapping[EngineId, WorkerPlace] = field(init=False)
    _lent: Mapping[str, str] = field(init=False)
    """Places of engines on training hardware, with the rank each is beside."""
    _text: str = field(init=False)

    def __post_init__(self) -> None:
        files = self.start.weights.glob("*.safetensors")
        weight_bytes = sum(file.stat().st_size for file in files)
        self._places = engine_places(self.config, weight_bytes=weight_bytes)
        ranks = range(self.config.training.ranks if self.config.lending.enabled else 0)
        self._lent = {f"{self.config.engine.label}-lent-{n}": f"{RANK}{n}" for n in ranks}
        self._text = dump_toml(self.config)

    @property
    def engines(self) -> tuple[str, ...]:
        """The places of the engines on inference hardware."""
        return tuple(self._places)

    @property
    def lent_engines(self) -> tuple[str, ...]:
        """The places of the engines on training hardware."""
        return tuple(self._lent)

    def is_better(self, place: str, engine: EngineId) -> bool:
        """Say whether a place's engine could now run where it prefers to, and does not."""
        if place in self._lent:
            return not self.resources.is_beside(engine, self._lent[place])
        return self.resources.is_better(engine)

    async def engine(self, place: str, engine: EngineId) -> SpawnedEngine:
        """Spawn an engine: a lent one beside its rank, any other where it fits best now."""
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
        if place in self._lent:
            binding = self.resources.bind_beside(engine, self._lent[place])
        else:
            binding = self.resources.bind(engine, self._places[EngineId(place)])
        handle = await self.host.spawn(ENGINE_ACTOR, options, asked=self.resources.asked(binding))
        pool = TRAINING if place in self._lent else binding.actual
        return SpawnedEngine(handle=handle, pool=pool)

    async def environments(self, name: str, is_spare: bool) -> Handle:
        """Spawn an environment worker where it fits best now; a spare on the driver's node."""
        place = environment_place(self.config)
        asked = on_node(here(), resources={}, cpus=0)
        if place is not None and not is_spare:
            asked = self.resources.asked(self.resources.bind(name, place))
        model = str(self.start.model)
        options: dict[str, Json] = {
            "config": self._text,
            "name": name,
            "model": model,
            "weights": str(self.start.weights),
            "version": int(self.start.version),
            "store": dict(self.start.store),
        }
        return await self.host.spawn(ENV_ACTOR, options, asked=asked)

    async def trainer(self, bindings: Sequence[Binding] | None = None) -> RemoteTrainer:
        """Spawn the trainer at its first version, its ranks as bound or where they fit best now."""
        if bindings is None:
            bindings = bind_ranks(self.config, self.resources)
        addresses = {node.id: node.address for node in nodes()}
        policy = open_policy(self.config)
        options: dict[str, Json] = {
            "model": str(self.start.model),
            "store": dict(self.start.store),
            **policy.trainer_options(),
            **trainer_arguments(
                self.config.training,
                self.config.algorithm,
                import_paths=self.config.run.import_paths,
                run_steps=self.config.run.steps,
            ),
        }
        plan = RankPlan(
            options=options,
            addresses=meeting_addresses([addresses.get(each.node, LOOPBACK) for each in bindings]),
            worker=rank_of(policy.trainer),
        )
        env = thread_env(self.config.training.threads)
        host = _RankHost(self.host, self.resources, bindings=bindings, env=env)
        return TrainerClient(await RankGroup.start(host, plan))


def bind_ranks(config: Config, resources: Resources, *, prefix: str = RANK) -> list[Binding]:
    """Bind every rank where it fits best now; raises, and binds none, if one fits nowhere."""
    names = [f"{prefix}{rank}" for rank in range(config.training.ranks)]
    place = trainer_place(config)
    try:
        return [resources.bind(name, place) for name in names]
    except PlacementError:
        for name in names:
            resources.release(name)
        raise


class _RankHost:
    """Spawns each rank where it is bound."""

    def __init__(
        self,
        host: RayHost,
        resources: Resources,
        *,
        bindings: Sequence[Binding],
        env: Mapping[str, str],
    ) -> None:
        self._host = host
        self._resources = resources
        self._bindings = bindings
        self._env = env

    async def spawn(
        self, target: str, options: Mapping[str, Json], *, own_process: bool, pool: str = ""
    ) -> RayHandle:
        """Spawn a rank."""
        del own_process, pool
        binding = self._bindings[int(str(options["rank"]))]
        return await self._host.spawn(
            target, options, asked=self._resources.asked(binding), env=self._env
        )


class TrainerMover:
    """Moves the trainer when its ranks could run in a pool they prefer."""

    def __init__(
        self, spawner: Spawner, trainer: TrainerSupervisor, *, warn: Callable[[str], None]
    ) -> None:
        self._spawner = spawner
        self._resources = spawner.resources
        self._trainer = trainer
        self._warn = warn

    @property
    def is_due(self) -> bool:
        """Whether a rank could now run in a pool it prefers to its own."""
        ranks = self._resources.bindings(RANK)
        return any(self._resources.is_better(rank.worker) for rank in ranks)

    async def move(self) -> bool:
        """Move the trainer; say whether that succeeded."""
        successors = self._bind_successors()
        if not successors:
            return await self._restart()
        try:
            is_moved = await self._trainer.move(lambda: self._spawner.trainer(successors))
            if is_moved:
                self._rename(successors)
            return is_moved
        except Exception as error:  # a full disk, for one: the trainer works where it is
            self._warn(f"the trainer cannot move: {error}")
            return False
        finally:
            self._release(successors)

    async def _restart(self) -> bool:
        """Make the trainer again from its save, where there is no room for two."""
        self._warn("the trainer restarts in its preferred pool")
        try:
            await self._trainer.restart()
        except Exception as error:
            self._warn(f"the trainer cannot restart: {error}")
            return False
        return True

    def _bind_successors(self) -> list[Binding]:
        """Bind a successor of every rank in its preferred pool; none if they do not all fit."""
        try:
            successors = bind_ranks(self._spawner.config, self._resources, prefix=_SUCCESSOR)
        except PlacementError:
            successors = []
        if all(each.is_at_home for each in successors):
            return successors
        self._release(successors)
        return []

    def _rename(self, successors: Sequence[Binding]) -> None:
        """Bind the successors under the names of the ranks, whose own places are free now."""
        place = trainer_place(self._spawner.config)
        for each in successors:
            worker = RANK + each.worker.removeprefix(_SUCCESSOR)
            self._resources.release(each.worker)
            self._resources.put_back([replace(each, worker=worker)], place)

    def _release(self, successors: Sequence[Binding]) -> None:
        for each in successors:
            self._resources.release(each.worker)
