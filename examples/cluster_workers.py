"""Workers of your own, called as one: on this machine, or on a Ray cluster.

python examples/cluster_workers.py            # processes here
python examples/cluster_workers.py local      # actors of a Ray on this machine
python examples/cluster_workers.py auto       # actors of the cluster this machine is part of
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from rollart.cluster import Cluster, Sharing, Worker, hw_mapping, register
from rollart.ports import Host
from rollart.runtime.host import EmbeddedHost


class Solver(Worker):
    """Does sums, and knows its rank."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.seen = 0

    @register("split")
    def squares(self, numbers: list[int]) -> list[int]:
        """Square a share of the numbers; the shares come back as one list, in order."""
        self.seen += len(numbers)
        return [number * number for number in numbers]

    @register("all")
    def count(self) -> int:
        """Say how many numbers this worker has seen."""
        return self.seen

    @register("rank_zero")
    def process(self) -> int:
        """Return the first worker's process id."""
        return os.getpid()

    @hw_mapping({"maze": "compute", "default": "bandwidth"})
    @register("one")
    def who(self) -> int:
        """Say which worker answered: one of the pool that the call's tag prefers."""
        return self.rank

    @register(
        Sharing(
            divide=lambda count, args: [(args[0][rank::count],) for rank in range(count)],
            collect=max,
        )
    )
    def largest(self, numbers: list[int]) -> int:
        """Find the largest number: dealt out in turns, and of the answers the largest."""
        return max(numbers)


@asynccontextmanager
async def open_host(address: str) -> AsyncGenerator[Host]:
    """Open this machine, or a cluster."""
    if not address:
        host = EmbeddedHost()
        try:
            yield host
        finally:
            await host.close()
        return
    from rollart.on_ray.host import RayHost  # noqa: PLC0415 only where Ray is wanted
    from rollart.on_ray.session import connected  # noqa: PLC0415

    with connected(address):
        ray_host = RayHost()
        try:
            yield ray_host
        finally:
            await ray_host.close()


async def main(address: str = "") -> dict[str, object]:
    """Make three workers in two pools and call them in every way there is."""
    async with open_host(address) as host:
        cluster = await Cluster.open(
            host,
            Solver,
            pools=["compute", "bandwidth", "bandwidth"],
            options=lambda rank: {"rank": rank},
        )
        squares = cluster.call(Solver.squares, list(range(7)))  # has begun; awaited below
        return {
            "here": os.getpid() == await cluster.call(Solver.process),
            "squares": await squares,
            "count": await cluster.call(Solver.count),
            "maze": await cluster.call_tagged("maze", Solver.who),
            "largest": await cluster.call(Solver.largest, [3, 1, 4, 1, 5, 9, 2, 6]),
        }


if __name__ == "__main__":
    import cluster_workers  # workers elsewhere find the class by this name, not as "__main__"

    sys.stdout.write(f"{asyncio.run(cluster_workers.main(*sys.argv[1:]))}\n")
