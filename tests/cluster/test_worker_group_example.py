"""The example of the programming model does what its page says."""

import asyncio
import sys

from checkout import ROOT

from rollart.rewards.invoke.methods import TOKEN_VARIABLE

EXAMPLES = ROOT / "examples"


def test_the_example_calls_workers_in_every_way(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.setenv(TOKEN_VARIABLE, "a token of its own")
    import cluster_workers

    assert asyncio.run(cluster_workers.main()) == {
        "here": False,
        "squares": [0, 1, 4, 9, 16, 25, 36],
        "see": "all have seen 7",
        "count": [3, 3, 4],
        "halve": 6,
        "maze": 0,
        "digits": [3, 6, 5],
        "largest": 9,
    }
    del sys.modules["cluster_workers"]
