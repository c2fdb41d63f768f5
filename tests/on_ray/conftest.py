"""One simulated cluster for all tests here, and a way to be connected to it."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "runtime"), str(ROOT)]

from benchmarks.ray_runs.simulated import SimulatedCluster  # noqa: E402


def pytest_collection_modifyitems(items):
    """Ray leaves sockets and files to the garbage collector: not our warnings."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore:.*:ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore:.*:FutureWarning"))
            item.add_marker(
                pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
            )


@pytest.fixture(scope="session")
def cluster():
    """A head and an H20 node: machines of a cluster, all of them processes here."""
    with SimulatedCluster(far=4) as simulated:
        simulated.add("bandwidth", cpus=0, H20=1)
        yield simulated
