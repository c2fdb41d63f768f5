from rollart.events import Drop, Score, ScoreFailed, TrajectoryScored, Woke
from rollart.observe.metrics import ScoreMetrics
from rollart.observe.recorder import render_trajectory
from rollart.types import Task, Turn, token_trajectory

WOKE = Woke(at_s=0.0)


def test_nothing_is_shown_where_no_function_scores():
    assert ScoreMetrics().row([{}]) == {}


def test_scores_fold_into_counts_latencies_and_the_means_of_parts():
    scores = ScoreMetrics()
    scores.add(1.0, WOKE, [Score(ids=(0, 1)), Score(ids=(2, 3), together=True)])
    scores.add(2.0, TrajectoryScored(id=0, reward=1.0, parts={"right": 1.0}), [])
    scores.add(5.0, TrajectoryScored(id=1, reward=0.0, parts={"right": 0.0, "short": 0.5}), [])
    drop = Drop(ids=(2,), reason="score_failed")
    scores.add(9.0, ScoreFailed(id=2, message="no grader"), [drop])
    taken = scores.take([0, 1])
    assert taken == {0: {"right": 1.0}, 1: {"right": 0.0, "short": 0.5}}
    assert scores.row(taken.values()) == {
        "reward/scored": 2,
        "reward/failed": 1,
        "reward/in_flight": 1,
        "reward/latency_p50_s": 4.0,
        "reward/latency_p99_s": 8.0,
        "reward/part/right": 0.5,
        "reward/part/short": 0.5,
    }
    assert scores.row([]) == {
        "reward/scored": 0,
        "reward/failed": 0,
        "reward/in_flight": 1,
        "reward/latency_p50_s": 0.0,
        "reward/latency_p99_s": 0.0,
    }
    assert scores.failures == {"no grader": 1}


def test_what_a_reward_is_made_of_is_part_of_the_text():
    turn = Turn(
        prompt_tokens=(1,),
        tokens=(2,),
        logprobs=(-0.1,),
        versions=(0,),
        observation="1+1",
        action="2",
        reward=0.0,
    )
    trajectory = token_trajectory(
        id=0,
        group=0,
        task=Task(id=0, env="sums", domain="sums", seed=0),
        turns=(turn,),
        stop="terminated",
        success=True,
        reward=1.1,
    )
    text = render_trajectory(trajectory, {"right": 1.0, "right/short": 0.1})
    assert "\nreward parts: right 1  right/short 0.1\n" in text
    assert "made of" not in render_trajectory(trajectory)
