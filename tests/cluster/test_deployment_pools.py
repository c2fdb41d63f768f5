"""Pools on this machine: engines of CPUs, and what cannot be had here."""

import pytest

from rollart.config.places import local_engines
from rollart.errors import ConfigError
from rollart.events import RunStarted
from rollart.observe.log import read_log
from rollart.pipelines.agentic import train

CPUS = ["pools.left.class=CPU", "pools.left.role=rollout", "pools.left.count=1"]
MORE = ["pools.right.class=CPU", "pools.right.role=rollout", "pools.right.count=2"]


def test_without_pools_the_replicas_are_one_pool(small):
    assert local_engines(small("x", "engine.replicas=2")) == {
        "torch-0": "local",
        "torch-1": "local",
    }


def test_pools_of_cpus_become_engines_that_are_routed_by_domain(small, runs):
    config = small(
        "pools", *CPUS, *MORE, "run.mode=rollart", "run.steps=1",
        "affinity.tasks={letters = ['right']}",
    )  # fmt: skip
    expected = {"left-0": "left", "right-0": "right", "right-1": "right"}
    assert local_engines(config) == expected
    assert train(config) == 0
    started = next(
        record.event
        for part in read_log(runs / "pools" / "events.jsonl")
        for record in part.records
        if isinstance(record.event, RunStarted)
    )
    assert {engine.id: engine.pool for engine in started.engines} == expected


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("pools.left.class=H20", "pools.left.class = 'H20': this host has no such hardware"),
        ("pools.left.role=any", "pools.left.role = 'any': this host gives its trainer"),
        ("pools.left.role=environments", "pools.left.role = 'environments': this host hosts env"),
        ("pools.left.labels={zone = 'a'}", "pools.left.labels = {'zone': 'a'}: this host has no"),
        ("pools.left.resource=slow", "pools.left.resource = 'slow': this host has no nodes"),
        ("affinity.rewards=left", "affinity.rewards = 'left': this host scores where"),
        ("pools.left.tp=2", "pools.left.tp = 2: this host runs each engine on one device"),
    ],
)
def test_what_this_host_cannot_do_is_one_message(small, override, message):
    with pytest.raises(ConfigError) as caught:
        train(small("none", *CPUS, override))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("where", [[], ["ray.address=local"]])
def test_prefill_and_decode_are_split_nowhere_and_nothing_is_made(small, runs, where):
    options = ["pools.left.prefill=1", "pools.left.decode=1"]
    with pytest.raises(ConfigError) as caught:
        train(small("none", *CPUS, *options, *where))
    assert str(caught.value) == (
        "pools.left.prefill = 1: the engine torch both reads and samples: leave prefill and "
        "decode out, or plan with --no-split; only `rollart simulate` takes a split"
    )
    assert not (runs / "none").exists()
