import pytest

from rollart.events import (
    Adapt,
    Cancel,
    Drop,
    EngineJoined,
    EngineLost,
    EngineUpdated,
    Launch,
    Publish,
    Published,
    Resume,
    RunStarted,
    StepFinished,
    Suspend,
    Train,
    TrajectoryCancelled,
    TrajectoryFailed,
    TrajectoryFinished,
    TrajectoryScored,
    TurnCut,
    Woke,
)
from rollart.observe.ledger import Ledger
from rollart.observe.metrics import Metrics, Status
from rollart.types import (
    EngineInfo,
    Failure,
    Task,
    Trajectory,
    TrajectoryInfo,
    Turn,
    token_trajectory,
)


def launch(id_: int) -> Launch:
    return Launch(id=id_, group=0, member=id_, attempt=0, task=0, slot=id_, seed=0)


def finished(id_: int, *, reward: float | None = 1.0, born: int = 0) -> TrajectoryFinished:
    info = TrajectoryInfo(
        id=id_,
        born=born,
        reward=reward,
        success=bool(reward),
        turns=2,
        cost=10,
        stop="terminated",
    )
    return TrajectoryFinished(info=info)


STARTED = RunStarted(engines=(EngineInfo(id="e0", pool="default", version=0),), slots=4)
FAILED = TrajectoryFailed(id=2, failure=Failure(kind="env_timeout", message="hung"), cost=3)

RUN = [
    (0.0, STARTED, [launch(0), launch(1), launch(2), launch(3)]),
    (1.0, finished(0), []),
    (1.0, FAILED, [launch(4)]),
    (2.0, finished(1, reward=None), []),
    (2.0, TrajectoryScored(id=1, reward=0.5), [Cancel(id=3, reason="surplus")]),
    (2.0, TrajectoryCancelled(id=3, cost=4), []),
    (3.0, finished(4), [Drop(ids=(4,), reason="stale")]),
    (3.0, Woke(at_s=0.0), [Train(version=0, groups=((0, 1),), staleness=0), Suspend(engine="e0")]),
    (3.5, Woke(at_s=0.0), [Resume(engine="e0")]),
    (4.0, StepFinished(version=1, metrics={"loss": 0.25}), [Publish(version=1)]),
]


def test_a_run_folds_into_one_row_per_step():
    metrics = Metrics()
    rows = [metrics.add(*record) for record in RUN]
    assert [row for row in rows if row is not None] == [
        {
            "step": 1,
            "time_s": 4.0,
            "trajectories": 2,
            "groups": 1,
            "reward_mean": 0.75,
            "success_rate": 0.5,
            "turns_mean": 2.0,
            "trained_tokens": 20,
            "staleness_mean": 0.0,
            "staleness_max": 0,
            "tokens": 37,
            "tokens_per_s": 9.25,
            "wasted_tokens": 17,
            "wasted/cancelled:surplus": 4,
            "wasted/dropped:stale": 10,
            "wasted/failed:env_timeout": 3,
            "trajectories_per_s": 0.5,
            "step_s": 4.0,
            "train_s": 1.0,
            "trainer_wait_s": 3.0,
            "engines_suspended_s": 0.5,
            "slots_busy": pytest.approx((4 + 3 + 1) / 16),
            "launched": 5,
            "finished": 3,
            "failed": 1,
            "cancelled": 1,
            "dropped": 1,
            "ended/trained/attempts": 2,
            "ended/trained/turns_mean": 2.0,
            "ended/trained/tokens_mean": 10.0,
            "ended/trained/reward_mean": 0.75,
            "ended/dropped/attempts": 1,
            "ended/dropped/turns_mean": 2.0,
            "ended/dropped/tokens_mean": 10.0,
            "ended/dropped/reward_mean": 1.0,
            "ended/cancelled/attempts": 1,
            "ended/cancelled/turns_mean": 0.0,
            "ended/cancelled/tokens_mean": 4.0,
            "ended/failed/attempts": 1,
            "ended/failed/turns_mean": 0.0,
            "ended/failed/tokens_mean": 3.0,
            "lost_length": pytest.approx(8.5 / 8.5 - 10 / 8.5),
            "trainer/loss": 0.25,
        }
    ]
    metrics.ledger.check()


def test_each_row_counts_from_the_step_before():
    metrics = Metrics()
    for record in RUN:
        metrics.add(*record)
    metrics.add(5.0, Woke(at_s=0.0), [launch(5)])
    metrics.add(6.0, finished(5, born=0), [Train(version=1, groups=((5,),), staleness=1)])
    row = metrics.add(8.0, StepFinished(version=2), [])
    assert row is not None
    assert (row["step"], row["tokens"], row["step_s"], row["wasted_tokens"]) == (2, 10, 4.0, 0)
    assert (row["staleness_mean"], row["staleness_max"]) == (1.0, 1)


def test_what_the_end_of_a_step_leads_to_is_counted_in_the_next_one():
    metrics = Metrics()
    for record in RUN[:-1]:
        metrics.add(*record)
    metrics.add(3.5, finished(9), [])
    now, event, commands = RUN[-1]
    row = metrics.add(now, event, [*commands, Drop(ids=(9,), reason="stale")])
    assert row is not None
    assert (row["dropped"], row["wasted/dropped:stale"]) == (1, 10)
    metrics.add(5.0, finished(5), [Train(version=1, groups=((5,),), staleness=1)])
    row = metrics.add(6.0, StepFinished(version=2), [])
    assert row is not None
    assert (row["dropped"], row["wasted/dropped:stale"]) == (1, 10)


def test_engines_that_join_and_are_lost_are_counted():
    metrics = Metrics()
    metrics.add(0.0, STARTED, [])
    another = EngineInfo(id="e1", pool="default", version=0)
    metrics.add(0.0, EngineJoined(engine=another), [])
    lent = EngineInfo(id="e2", pool="training", version=0, lent=True)
    metrics.add(0.0, EngineJoined(engine=lent), [Suspend(engine="e0")])
    assert (metrics.status.engines, metrics.status.suspended) == (2, 1)
    metrics.add(0.0, EngineLost(engine="e0", message="gone"), [])
    assert (metrics.status.engines, metrics.status.suspended) == (1, 0)


def test_rates_are_over_several_steps():
    metrics = Metrics()
    for record in RUN:
        metrics.add(*record)
    metrics.add(4.0, finished(5), [Train(version=1, groups=((5,),), staleness=1)])
    row = metrics.add(4.5, StepFinished(version=2), [])
    assert row is not None
    assert row["trajectories_per_s"] == pytest.approx(3 / 4.5)
    assert row["tokens_per_s"] == pytest.approx(47 / 4.5)
    for step in range(3, 20):
        id_ = 100 + step
        train = Train(version=step - 1, groups=((id_,),), staleness=0)
        metrics.add(4.0 * step, finished(id_), [train])
        row = metrics.add(4.0 * step + 2.0, StepFinished(version=step), [])
    assert row["trajectories_per_s"] == pytest.approx(1 / 4.0)
    assert row["tokens_per_s"] == pytest.approx(10 / 4.0)


def test_rows_have_figures_of_each_task_where_there_are_several():
    metrics = Metrics(lambda task: ("lake", "sums")[task])
    launches = [
        Launch(id=id_, group=id_, member=0, attempt=0, task=id_ % 2, slot=id_, seed=0)
        for id_ in range(6)
    ]
    metrics.add(0.0, STARTED, launches)
    for id_, reward in enumerate((1.0, 0.0, 1.0, 1.0)):
        metrics.add(1.0, finished(id_, reward=reward), [])
    metrics.add(1.0, TrajectoryCancelled(id=4, cost=0), [])
    metrics.add(1.0, finished(5), [Drop(ids=(5,), reason="stale")])
    metrics.add(1.0, Woke(at_s=0.0), [Train(version=0, groups=((0, 1), (2, 3)), staleness=0)])
    row = metrics.add(2.0, StepFinished(version=1), [])
    assert row is not None
    assert row["tasks/lake/ended/trained/attempts"] == 2
    assert row["tasks/sums/ended/dropped/attempts"] == 1
    by_task = {name: value for name, value in row.items() if name.startswith("tasks/")}
    assert {name: by_task[name] for name in by_task if name.count("/") == 2} == {
        "tasks/sums/lost_length": 0.0,
        "tasks/lake/trajectories": 2,
        "tasks/lake/reward_mean": 1.0,
        "tasks/lake/success_rate": 1.0,
        "tasks/sums/trajectories": 2,
        "tasks/sums/reward_mean": 0.5,
        "tasks/sums/success_rate": 0.5,
    }


def test_rows_show_what_moving_weights_took_since_the_step_before():
    metrics = Metrics()
    for record in RUN:
        metrics.add(*record)
    metrics.add(5.0, Published(version=1, metrics={"push_s": 3.0}), [launch(5)])
    for pull_s, exposed_s in ((2.0, 0.5), (4.0, 0.1)):
        took = {"pull_s": pull_s, "exposed_s": exposed_s, "load_s": 0.25}
        metrics.add(5.0, EngineUpdated(engine="e0", version=1, metrics=took), [])
    metrics.add(6.0, finished(5, born=0), [Train(version=1, groups=((5,),), staleness=1)])
    row = metrics.add(8.0, StepFinished(version=2), [])
    assert row is not None
    assert {name: value for name, value in row.items() if name.startswith("weights/")} == {
        "weights/push_s": 3.0,
        "weights/pull_s": 3.0,
        "weights/exposed_s": 0.3,
        "weights/load_s": 0.25,
    }


def test_the_status_says_what_is_going_on():
    metrics = Metrics()
    for record in RUN[:8]:
        metrics.add(*record)
    assert metrics.status == Status(
        step=0, running=0, slots=4, waiting=0, engines=1, suspended=1, training_since_s=3.0
    )


def test_the_ledger_books_every_token_once():
    ledger = Ledger()
    for _, event, commands in RUN:
        ledger.add(event, commands)
        ledger.check()
    assert ledger.sampled == 37
    assert ledger.trained == 20
    assert dict(ledger.wasted) == {
        "failed:env_timeout": 3,
        "cancelled:surplus": 4,
        "dropped:stale": 10,
    }


def test_tokens_count_as_trained_when_their_step_has_ended():
    ledger = Ledger()
    ledger.add(finished(0), [Train(version=0, groups=((0,),), staleness=0)])
    ledger.check()
    assert ledger.trained == 0
    ledger.add(StepFinished(version=1), [])
    ledger.check()
    assert ledger.trained == 10


def test_an_attempt_that_ends_before_its_cancel_takes_effect_is_not_lost():
    ledger = Ledger()
    ledger.add(Woke(at_s=0.0), [Cancel(id=0, reason="stale")])
    ledger.add(finished(0), [Drop(ids=(0,), reason="stale")])
    ledger.add(Woke(at_s=0.0), [Cancel(id=2, reason="stale")])
    ledger.add(FAILED, [])
    ledger.check()
    assert dict(ledger.wasted) == {"dropped:stale": 10, "failed:env_timeout": 3}


def test_what_a_turn_had_sampled_that_was_cut_off_is_wasted_for_the_reason_of_its_attempt():
    ledger = Ledger()
    ledger.add(Woke(at_s=0.0), [Cancel(id=0, reason="stale")])
    ledger.add(TrajectoryCancelled(id=0, cost=4), [])
    ledger.add(FAILED, [])
    ledger.add(TurnCut(id=FAILED.id, cost=9), [])
    ledger.add(TurnCut(id=0, cost=7), [])
    ledger.check()
    assert dict(ledger.wasted) == {"cancelled:stale": 11, "failed:env_timeout": 12}


def test_rows_show_what_admission_goes_by_once_it_adapts():
    metrics = Metrics()
    adapted = [(2.0, Woke(at_s=0.0), [Adapt(alpha=2, extra_groups=3)]), *RUN[3:]]
    row = [metrics.add(*record) for record in [*RUN[:3], *adapted]][-1]
    assert (row["adaptive/alpha"], row["adaptive/extra_groups"]) == (2, 3)


def attempt(id_: int, *, born: int, tokens: int) -> Trajectory:
    turn = Turn(
        prompt_tokens=(),
        tokens=(1,) * tokens,
        logprobs=(0.0,) * tokens,
        versions=(born,) * tokens,
        observation="",
        action="",
        reward=0.0,
    )
    task = Task(id=0, env="game", domain="game", seed=0)
    return token_trajectory(
        id=id_, group=0, task=task, turns=(turn,), stop="terminated", success=True, reward=0.0
    )


def test_a_run_that_goes_on_counts_what_was_in_its_buffer():
    metrics = Metrics()
    metrics.take_over([attempt(7, born=2, tokens=10)], {7: 0.5})
    metrics.add(0.0, STARTED, [launch(8)])
    metrics.add(1.0, finished(8, reward=1.0, born=3), [])
    metrics.add(1.0, Woke(at_s=0.0), [Train(version=3, groups=((7, 8),), staleness=1)])
    row = metrics.add(2.0, StepFinished(version=4, metrics={}), [])
    assert row is not None
    assert (row["trajectories"], row["reward_mean"], row["staleness_max"]) == (2, 0.75, 1)
    assert (row["trained_tokens"], row["tokens"]) == (20, 10)  # only 10 were sampled in this part
    metrics.ledger.check()
