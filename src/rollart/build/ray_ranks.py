"""The trainer on a Ray cluster: a group of ranks, each where training belongs.

Ranks of several machines meet at an address of the first one's; those of one machine on loopback.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from rollart.build.resources import Resources
from rollart.config import Config
from rollart.config.placing import trainer_place
from rollart.control.binding import Binding
from rollart.errors import PlacementError
from rollart.on_ray.host import RayHandle, RayHost
from rollart.on_ray.session import nodes
from rollart.ports import Handle
from rollart.runtime.host import thread_env
from rollart.training.addresses import LOOPBACK, meeting_addresses
from rollart.training.ranks import RankGroup, RankPlan
from rollart.types import Json

RANK = "trainer-"
"""What the names of all ranks begin with."""


def bind_ranks(config: Config, resources: Resources, *, prefix: str = RANK) -> list[Binding]:
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
    resources: Resources,
    *,
    bindings: Sequence[Binding],
    options: Mapping[str, Json],
) -> Handle:
    """Make the trainer at its first version, each rank where it is bound."""
    known = {node.id: node.address for node in nodes()}
    ranks = _RankHost(host, resources, bindings)
    ranks.env = thread_env(config.training.threads)
    plan = RankPlan(
        options={**options, "options": json.loads(json.dumps(asdict(config.training)))},
        addresses=meeting_addresses([known.get(each.node, LOOPBACK) for each in bindings]),
    )
    return await RankGroup.start(ranks, plan)


class _RankHost:
    """Puts each rank where it is bound."""

    def __init__(self, host: RayHost, resources: Resources, bindings: Sequence[Binding]) -> None:
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
