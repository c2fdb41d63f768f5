"""Fixtures for all tests, and which tests share a process when several run at once."""

import asyncio
import inspect
import os
import signal
from collections.abc import Iterator
from secrets import token_hex
from typing import Any

import pytest
import virtual_time
from xdist.scheduler import LoadScopeScheduling

# Ray reads these once, when it is loaded; nodes and drivers started from here inherit them.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_worker_niceness", "0")
os.environ.setdefault("RAY_AUTH_MODE", "token")
os.environ.setdefault("RAY_AUTH_TOKEN", token_hex(32))

# A suite started in the background inherits that SIGINT is ignored; tests send it to themselves and
# to their children, which inherit it again.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["small_runs", "checkpoints"]

ON_RAY = "tests/cluster/test_ray_"
ENDS_CLUSTER = "test_ray_deployment_two_pools"
NOT_OURS = (
    "ignore:.*:ResourceWarning",
    "ignore:.*:DeprecationWarning",
    "ignore:.*:FutureWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)
"""Ray leaves sockets and files to the garbage collector."""
ASYNC_TEST_S = 180
"""Most seconds a test written `async def` may take."""


class ByFile(LoadScopeScheduling):
    """Keep the tests of a file together, so that what they share is made once.

    All tests on Ray keep together: two clusters at once start too slowly on two cores.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "ray" if nodeid.startswith(ON_RAY) else nodeid.split("::", 1)[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start what takes longest first, and the test that ends the cluster after the others on it."""
    items.sort(key=lambda item: (not item.nodeid.startswith(ON_RAY), ENDS_CLUSTER in item.nodeid))
    for item in items:
        if item.nodeid.startswith(ON_RAY):
            for rule in NOT_OURS:
                item.add_marker(pytest.mark.filterwarnings(rule))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test written `async def` in an event loop of its own.

    Where its module says `IN_VIRTUAL_TIME = True`, the loop is a virtual one.
    """
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments = {name: pyfuncitem.funcargs[name] for name in names}

    if getattr(pyfuncitem.module, "IN_VIRTUAL_TIME", False):
        virtual_time.run(lambda _loop: pyfuncitem.obj(**arguments))
        return True

    async def run() -> None:
        async with asyncio.timeout(ASYNC_TEST_S):
            await pyfuncitem.obj(**arguments)

    asyncio.run(run())
    return True


@pytest.fixture(autouse=True)
def _no_interrupt_left() -> Iterator[None]:
    """Let no test leave a signal handler to those that run after it in this process."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    yield
    left = [signal.getsignal(number) for number in numbers]
    if left != before:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
        pytest.fail(f"signal handlers were left: {left}, not {before}")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Start a Ray head and an H20 node, all of them processes of this machine."""
    from benchmarks.ray_runs.simulated import SimulatedCluster  # loads ray

    with SimulatedCluster(far=4) as simulated:
        simulated.add("bandwidth", cpus=0, H20=1)
        yield simulated
