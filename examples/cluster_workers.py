"""Workers of your own, called as one: on this machine, or on a Ray cluster.

python examples/cluster_workers.py            # processes here
python examples/cluster_workers.py local      # actors of a Ray on this machine
python examples/cluster_workers.py auto       # actors of the cluster this machine is part of

One method is a function's instead of a worker's; a server on loopback stands for its platform.
"""

import asyncio
import hmac
import json
import os
import sys
import threading
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from secrets import token_hex

from rollart.cluster.local_host import EmbeddedHost
from rollart.cluster.worker_group import (
    Sharing,
    Worker,
    WorkerGroup,
    hw_mapping,
    register,
    serverless,
)
from rollart.errors import UserError
from rollart.ports import Host
from rollart.rewards.invoke.methods import TOKEN_VARIABLE, HttpMethods, answer

MOST_BYTES = 2**20


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

    @register("together")
    def see(self, number: int) -> str:
        """See a number, all workers the same; the first speaks for all."""
        self.seen += 1
        return f"all have seen {number}"

    @register("rank_zero")
    def process(self) -> int:
        """Return the first worker's process id."""
        return os.getpid()

    @register("one")
    def halve(self, number: int) -> int:
        """Halve a number, on the worker that has the least to do."""
        return number // 2

    @hw_mapping({"maze": "compute", "default": "bandwidth"})
    @register("one")
    def who(self) -> int:
        """Say which worker answered: one of the pool that the call's tag prefers."""
        return self.rank

    @serverless("/digits")
    @register("one")
    def digits(self, number: int) -> list[int]:
        """Take a number apart: pure, so a function does it instead of a worker."""
        return [int(digit) for digit in str(number)]

    @register(
        Sharing(
            divide=lambda count, args: [(args[0][rank::count],) for rank in range(count)],
            collect=max,
        )
    )
    def largest(self, numbers: list[int]) -> int:
        """Find the largest number: dealt out in turns, and of the answers the largest."""
        return max(numbers)


class Served(BaseHTTPRequestHandler):
    """The function: answers calls of those who know the token."""

    def do_POST(self) -> None:
        """Answer one call."""
        token = f"Bearer {os.environ[TOKEN_VARIABLE]}"
        if not hmac.compare_digest(self.headers.get("Authorization", ""), token):
            return self.reply(401, b'{"error": "a bearer token is wanted"}')
        body = self.rfile.read(min(int(self.headers["Content-Length"]), MOST_BYTES))
        try:
            return self.reply(200, answer(Solver(rank=0), body))
        except UserError as error:
            return self.reply(400, json.dumps({"error": str(error)}).encode())

    def reply(self, status: int, body: bytes) -> None:
        """Send an answer."""
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        """Say nothing of each call."""


@contextmanager
def serve() -> Generator[str]:
    """Serve the function on loopback; yield its address."""
    os.environ.setdefault(TOKEN_VARIABLE, token_hex(16))
    with ThreadingHTTPServer(("127.0.0.1", 0), Served) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()


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
    from rollart.cluster.ray_host import RayHost  # noqa: PLC0415 only where Ray is wanted
    from rollart.cluster.ray_session import connected  # noqa: PLC0415

    with connected(address):
        ray_host = RayHost()
        try:
            yield ray_host
        finally:
            await ray_host.close()


async def main(address: str = "") -> dict[str, object]:
    """Make three workers in two pools and call them in every way there is."""
    with serve() as url:
        functions = HttpMethods(base=url)
        async with open_host(address) as host:
            cluster = await WorkerGroup.open(
                host,
                Solver,
                pools=["compute", "bandwidth", "bandwidth"],
                options=lambda rank: {"rank": rank},
                invoke=functions,
            )
            squares = cluster.call(Solver.squares, list(range(7)))  # has begun; awaited below
            results = {
                "here": os.getpid() == await cluster.call(Solver.process),
                "squares": await squares,
                "see": await cluster.call(Solver.see, 7),
                "count": await cluster.call(Solver.count),
                "halve": await cluster.call(Solver.halve, 12),
                "maze": await cluster.call_tagged("maze", Solver.who),
                "digits": await cluster.call(Solver.digits, 365),
                "largest": await cluster.call(Solver.largest, [3, 1, 4, 1, 5, 9, 2, 6]),
            }
        await functions.close()
        return results


if __name__ == "__main__":
    import cluster_workers  # workers elsewhere find the class by this name, not as "__main__"

    sys.stdout.write(f"{asyncio.run(cluster_workers.main(*sys.argv[1:]))}\n")
