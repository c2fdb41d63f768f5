"""What each benchmark prints: readers of the JSON rely on these names."""

import numpy as np
import pytest

from benchmarks import control, engine, faults, fidelity, log, modes, trl
from benchmarks.live_runs.timed import Timed
from rollart.events import Launch, StepFinished, Train, TrajectoryCancelled, TrajectoryFailed
from rollart.observe.log import Record
from rollart.training.batch import decode, encode
from rollart.types import (
    Failure,
    GroupId,
    SlotId,
    Task,
    TrajectoryId,
    Turn,
    Version,
    token_trajectory,
)


def launch(id_: int, *, slot: int) -> Launch:
    return Launch(
        id=TrajectoryId(id_),
        group=GroupId(0),
        member=0,
        attempt=0,
        task=0,
        slot=SlotId(slot),
        seed=0,
    )


def live_run(*, step_s: float, failing: bool = True) -> Timed:
    """Two trained trajectories in one step; attempts in the slots that `faults` calls faulty."""
    launches = tuple(launch(id_, slot=slot) for id_, slot in enumerate((3, 7, 11, 0)))
    crash = Failure(kind="env_error", message="crashed")
    failed = TrajectoryFailed(id=TrajectoryId(2), failure=crash, cost=0)
    overtaken = TrajectoryCancelled(id=TrajectoryId(0), cost=0)
    pair = (TrajectoryId(8), TrajectoryId(9))
    train = Train(version=Version(0), groups=(pair,), staleness=0)
    return Timed(
        records=(
            Record(time_s=5.0, event=overtaken, commands=launches),
            Record(time_s=5.5, event=failed if failing else overtaken, commands=(train,)),
            Record(time_s=5.0 + step_s, event=StepFinished(version=Version(1)), commands=()),
        ),
        proof={"lost": 0, "trained_twice": 1},
    )


def test_modes_reports_ratios_and_rates():
    rates = {"sync": 1.0, "sync_plus": 2.0, "one_off": 3.0, "areal": 3.5, "rollart": 4.0}
    over = {0.1: [1.5, 1.7], 0.3: [1.0], 0.5: [1.0], 0.7: [1.0], 1.0: [3.0]}

    trained = {mode: [rate, rate] for mode, rate in rates.items()}
    assert modes.report(trained, dropping=[2, 2], pacing=[4, 4], over=over) == {
        "rollart_over_sync": 4.0,
        "rollart_over_sync_plus": 2.0,
        "trajectory_over_lockstep": {"0.1": 1.6, "0.3": 1.0, "0.5": 1.0, "0.7": 1.0, "1.0": 3.0},
        "trained_per_s": rates,
        "pace_over_drop": 2.0,
    }


def test_faults_reports_what_was_kept_and_what_happened_in_faulty_slots():
    done = faults.Round(
        healthy=live_run(step_s=1.0),
        spares=live_run(step_s=1.25),
        no_spares=live_run(step_s=2.0),
    )
    in_slots = {
        "hung": {"launches": 1, "failures": 0, "cancelled": 1},
        "slow": {"launches": 1, "failures": 0, "cancelled": 0},
        "crashing": {"launches": 1, "failures": 1, "cancelled": 0},
    }

    assert faults.report([done]) == {
        "kept": 0.8,
        "kept_without_spares": 0.5,
        "lost": 0,
        "trained_twice": 3,
        "trained_per_s": [{"healthy": 2.0, "faulty": 1.6, "faulty_without_spares": 1.0}],
        "in_faulty_slots": [in_slots],
        "in_faulty_slots_without_spares": [in_slots],
    }


def test_faults_refuses_a_run_that_met_no_fault():
    with pytest.raises(RuntimeError, match="nothing failed"):
        faults.endings(live_run(step_s=1.0, failing=False))
    with pytest.raises(RuntimeError, match="never used"):
        faults.endings(Timed(records=(), proof={}))


def test_fidelity_reports_the_largest_error_and_tokens_that_differ():
    turn = Turn(
        prompt_tokens=(1, 2),
        tokens=(3, 4),
        logprobs=(-0.5, -1.0),
        versions=(Version(0), Version(0)),
        observation="",
        action="",
        reward=1.0,
    )
    trajectory = token_trajectory(
        id=TrajectoryId(7),
        group=GroupId(0),
        task=Task(id=0, env="lake", domain="lake", seed=0),
        turns=(turn,),
        stop="terminated",
        success=True,
        reward=1.0,
    )
    batch = decode(encode([[trajectory]]))
    recomputed = np.array([9.0, 9.0, -0.5, -1.25], dtype=np.float32)

    assert fidelity.report([trajectory], {trajectory.id: (1, 2, 3, 5)}, batch, recomputed) == {
        "max_logprob_error": 0.25,
        "retokenised": 1,
        "trajectories": 1,
        "turns": 1,
        "sampled_tokens": 2,
    }


def test_engine_reports_ratios_by_model_size():
    speeds = {"engine": [6.0, 8.0], "generate": [2.0, 2.0], "continuous_batching": [1.0, 1.0]}
    best = dict.fromkeys(speeds, "1 thread")

    assert engine.report(dict.fromkeys(engine.SIZES, (speeds, best))) == {
        "over_generate": {"1M": 3.5, "5M": 3.5},
        "over_continuous_batching": {"1M": 7.0, "5M": 7.0},
        "tokens_per_s": {
            size: {"engine": 7, "generate": 2, "continuous_batching": 1} for size in ("1M", "5M")
        },
        "settings": {"1M": best, "5M": best},
        "conversations": 32,
        "turns": 6,
    }


def test_trl_reports_ratios_of_rates_and_of_times_to_the_same_reward():
    def side(name: str, *, rate: float, step_s: float) -> tuple[trl.Trial, trl.Report]:
        best = trl.Setting(side=name)
        seen = {
            "trained_per_s": rate,
            "reward": [0.0, 1.0, 1.0],
            "wall_s": [step_s, 2 * step_s, 3 * step_s],
        }
        return trl.Trial(best=best, rates={best.label: rate}), seen

    ours, own = side("ours", rate=30.0, step_s=1.0)
    theirs, other = side("theirs", rate=10.0, step_s=2.0)
    duel = trl.Duel(ours=ours, theirs=theirs, pairs=((own, other),))
    rates = {
        "ratio": 3.0,
        "ratios": [3.0],
        "rollart_setting": "ours, 1 threads, 1 processes",
        "trl_setting": "theirs, 1 threads, 1 processes",
        "rollart": {"trained_per_s": 30.0},
        "trl": {"trained_per_s": 10.0},
        "rollart_trials": {"ours, 1 threads, 1 processes": 30.0},
        "trl_trials": {"theirs, 1 threads, 1 processes": 10.0},
    }

    assert trl.report(duel, duel, curves=(own, other)) == {
        "over_rollout_func_0ms": 3.0,
        "over_environment_factory_200ms": 3.0,
        "time_to_reward_ratio": 2.0,
        "reward_mark": pytest.approx(0.6),
        "rollart_to_mark_s": 3.0,
        "trl_to_mark_s": 6.0,
        "rollout_func_0ms": rates,
        "environment_factory_200ms": rates,
    }


def test_control_reports_wall_clock_and_processor_time():
    costs = {
        size: [control.Cost(events=100, busy_s=0.5, wall_s=wall_s)]
        for size, wall_s in ((1_000, 1.0), (10_000, 2.0), (100_000, 4.0))
    }

    assert control.report(costs) == {
        "events_per_s": 50,
        "growth_1k_to_100k": 4.0,
        "events_per_s_by_trajectories": {"1000": 100, "10000": 50, "100000": 25},
        "events_per_processor_s_by_trajectories": {"1000": 200, "10000": 200, "100000": 200},
    }


def test_log_reports_rates_and_how_they_compare_with_the_log_before():
    now = [log.Took(write_s=1.0, read_s=2.0), log.Took(write_s=3.0, read_s=6.0)]
    before = [log.Took(write_s=4.0, read_s=2.0), log.Took(write_s=6.0, read_s=3.0)]

    assert log.report(100, now=now, before=before) == {
        "write_per_s": 50,
        "read_per_s": 25,
        "over_before_write": 3.0,
        "over_before_read": 0.75,
    }
