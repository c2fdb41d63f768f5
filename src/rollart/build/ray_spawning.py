"""What a run puts on a Ray cluster: each actor is bound to a node, then started there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rollart.build.ray_ranks import RANK, bind_ranks, spawn_trainer
from rollart.build.resources import Resources
from rollart.config import Config, dump_toml
from rollart.config.local_pools import TRAINING
from rollart.config.placing import Place, engine_places, environment_place
from rollart.control.binding import Binding
from rollart.on_ray.host import RayHost
from rollart.on_ray.placement import on_node
from rollart.on_ray.session import here
from rollart.ports import Handle
from rollart.runtime.engine_fleet import Berth, Spawned
from rollart.runtime.host import thread_env
from rollart.types import EngineId, Json, Version

ENGINE = "rollart.build.engine_actor:EngineActor"
ENVIRONMENTS = "rollart.build.env_actor:EnvActor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
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
    start: Start
    resources: Resources
    host: RayHost = field(default_factory=lambda: RayHost(env=thread_env(1)))
    _places: Mapping[EngineId, Place] = field(init=False)
    _lent: Mapping[str, str] = field(init=False)
    """Berths of engines on training hardware, with the rank each is beside."""
    _text: str = field(init=False)

    def __post_init__(self) -> None:
        files = self.start.weights.glob("*.safetensors")
        weight_bytes = sum(file.stat().st_size for file in files)
        self._places = engine_places(self.config, weight_bytes=weight_bytes)
        ranks = range(self.config.training.ranks if self.config.lending.enabled else 0)
        self._lent = {f"{self.config.engine.name}-lent-{n}": f"{RANK}{n}" for n in ranks}
        self._text = dump_toml(self.config)

    def berths(self) -> list[Berth]:
        """Return a berth for each engine of the run."""
        serving = [Berth(name=name) for name in self._places]
        return serving + [Berth(name=name, is_lent=True) for name in self._lent]

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
        handle = await self.host.spawn(ENGINE, options, asked=self.resources.asked(binding))
        return Spawned(handle=handle, pool=TRAINING if berth in self._lent else binding.actual)

    async def environments(self, name: str, is_spare: bool) -> Handle:
        """Make an environment worker where it fits best now; a spare in the driver's node."""
        place = environment_place(self.config)
        asked = on_node(here(), resources={}, cpus=0)
        if place is not None and not is_spare:
            asked = self.resources.asked(self.resources.bind(name, place))
        model = str(self.start.model)
        options: dict[str, Json] = {"config": self._text, "name": name, "model": model}
        return await self.host.spawn(ENVIRONMENTS, options, asked=asked)

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
