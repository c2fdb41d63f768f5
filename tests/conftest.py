"""Which tests share a worker when several run at once."""

from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

ON_RAY = ("tests/on_ray/", "tests/rewards/serverless/test_ray_invoker.py")


class ByFile(LoadScopeScheduling):
    """A file's tests keep together, so that what they share is made once.

    Tests on Ray all keep together: two clusters at once start too slowly on two cores.
    """

    def _split_scope(self, nodeid: str) -> str:
        return "ray" if nodeid.startswith(ON_RAY) else nodeid.split("::", 1)[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first."""
    items.sort(key=lambda item: not item.nodeid.startswith(ON_RAY))
