"""The trainer on a Ray cluster: one rank or several, each where training belongs."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from secrets import token_hex

from rollart.build.resources import Resources
from rollart.config import Config
from rollart.config.placing import Place, trainer_place
from rollart.on_ray.host import RayHandle, RayHost
from rollart.ports import Handle
from rollart.runtime.host import thread_env
from rollart.training.ranks import TRAINER, RankGroup, RankPlan
from rollart.types import Json

RANK = "trainer-"
"""What the names of all ranks begin with."""


async def spawn_trainer(
    config: Config,
    host: RayHost,
    resources: Resources,
    *,
    options: Mapping[str, Json],
    directory: Path,
) -> Handle:
    """Make the trainer at its first version; ranks of several machines meet in `directory`."""
    options = {**options, "options": json.loads(json.dumps(asdict(config.training)))}
    ranks = _RankHost(host, resources, trainer_place(config))
    ranks.env = thread_env(config.training.threads)
    if config.training.ranks == 1:
        return await ranks.spawn(TRAINER, options, own_process=True)

    def meet() -> str:  # a new place each time: ranks that are made again must not find the old
        return f"file://{(directory / f'meeting-{token_hex(4)}').resolve()}"

    plan = RankPlan(options=options, ranks=config.training.ranks, rendezvous=meet)
    return await RankGroup.start(ranks, plan)


class _RankHost:
    """Puts each rank it is asked for where training belongs."""

    def __init__(self, host: RayHost, resources: Resources, place: Place) -> None:
        self._host = host
        self._resources = resources
        self._place = place
        self._ranks = 0
        self.env: Mapping[str, str] = {}

    async def spawn(
        self, target: str, options: Mapping[str, Json], *, own_process: bool, pool: str = ""
    ) -> RayHandle:
        """Make a rank."""
        del own_process, pool
        worker = f"{RANK}{self._ranks}"
        self._ranks += 1
        binding = self._resources.bind(worker, self._place)
        return await self._host.spawn(
            target, options, asked=self._resources.asked(binding), env=self.env
        )
