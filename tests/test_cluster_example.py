"""The example of the programming model does what its page says."""

import asyncio
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"


def test_the_example_calls_workers_in_every_way(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import cluster_workers

    assert asyncio.run(cluster_workers.main()) == {
        "here": False,
        "squares": [0, 1, 4, 9, 16, 25, 36],
        "count": [2, 2, 3],
        "maze": 0,
        "largest": 9,
    }
    del sys.modules["cluster_workers"]
