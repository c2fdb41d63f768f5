"""Training hardware of a cluster serves rollout between two steps, and is the trainer's again."""

from benchmarks.ray_runs.watched import WITHOUT_POOLS, WatchedRun, steps
from rollart.events import EngineLent, EngineRecalled, StepFinished
from rollart.observe.log import read_log
from rollart.observe.replay import replay, turns_served

LENDING = ("lending.enabled=true", "lending.min_idle_s=0", "lending.min_switches=0")


def seen(records, kind):
    return [record for record in records if isinstance(record.event, kind)]


def test_an_engine_beside_the_trainer_serves_while_that_waits(cluster, tmp_path):
    few = ("ray.environment_workers=1", "ray.spare_workers=0", "staleness.alpha=0")
    run = WatchedRun(tmp_path, cluster.address, *LENDING, *few, config=WITHOUT_POOLS)
    try:
        run.wait(lambda records: len(seen(records, EngineRecalled)) >= 3 and steps(records) >= 3)
        run.interrupt()
        code, said = run.finish()
    finally:
        run.end()
    assert code == 130, said
    records = run.records()
    away = False
    for record in records:
        away |= isinstance(record.event, EngineLent)
        assert not (away and isinstance(record.event, StepFinished))
        away &= not isinstance(record.event, EngineRecalled)
    assert {record.event.engine for record in seen(records, EngineLent)} == {"torch-lent-0"}
    served = turns_served(read_log(run.directory / "events.jsonl"))
    assert sum(pools.get("training", 0) for pools in served.values()) > 0
    proof = replay(run.directory)
    assert (proof["same_commands"], proof["lost"], proof["trained_twice"]) == (True, 0, 0)
