"""Scoring beside the rollout: one answer for each trajectory, whatever the scorer does."""

import asyncio

import pytest
from live_parts import Countdown, Live
from scorers import in_thread

from rollart.control.rules import MODES, Batching, Filter, Retry, Rules
from rollart.errors import ScoreError, UserError
from rollart.events import Score, ScoreFailed, TrajectoryScored
from rollart.observe.replay import replay
from rollart.rollout.buffer import Buffer
from rollart.rollout.scoring import Scoring
from rollart.types import Reward, Task, Trajectory, Turn, token_trajectory


def record(id_: int) -> Trajectory:
    turn = Turn(
        prompt_tokens=(1,),
        tokens=(2,),
        logprobs=(-0.1,),
        versions=(0,),
        observation="o",
        action="a",
        reward=0.0,
    )
    return token_trajectory(
        id=id_,
        group=0,
        task=Task(id=0, env="e", domain="d", seed=0),
        turns=(turn,),
        stop="terminated",
        success=False,
        reward=0.5,
    )


def answers(scorer, *commands: Score, then=lambda scoring, buffer: None):
    """Return what is answered to commands about three trajectories, and their rewards."""

    async def run():
        events = []
        buffer = Buffer(lambda _version: True)
        for id_ in range(3):
            buffer.put(record(id_))
        async with asyncio.TaskGroup() as tasks:
            scoring = Scoring(scorer, buffer=buffer, post=events.append, tasks=tasks)
            for command in commands:
                scoring.begin(command)
            await asyncio.sleep(0)
            then(scoring, buffer)
        return events, [buffer.get(id_).reward if id_ < len(buffer) else None for id_ in range(3)]

    return asyncio.run(run())


async def by_place(trajectories):
    return [Reward(value=float(n), parts={"n": float(n)}) for n, _ in enumerate(trajectories)]


def test_what_is_scored_alone_and_together_is_given_its_reward():
    events, rewards = answers(by_place, Score(ids=(0,)), Score(ids=(1, 2), together=True))
    assert events == [
        TrajectoryScored(id=0, reward=0.0, parts={"n": 0.0}),
        TrajectoryScored(id=1, reward=0.0, parts={"n": 0.0}),
        TrajectoryScored(id=2, reward=1.0, parts={"n": 1.0}),
    ]
    assert rewards == [0.0, 0.0, 1.0]


def test_each_failure_is_told_in_its_place():
    async def scorer(trajectories):
        return [Reward(value=1.0), ScoreError("no grader"), Reward(value=float("inf"))]

    events, rewards = answers(scorer, Score(ids=(0, 1, 2), together=True))
    assert events == [
        TrajectoryScored(id=0, reward=1.0),
        ScoreFailed(id=1, message="no grader"),
        ScoreFailed(id=2, message="the reward must be a finite number; it was inf"),
    ]
    assert rewards == [1.0, 0.5, 0.5]


async def raises(trajectories):
    raise KeyError("lost")


async def refuses(trajectories):
    raise ScoreError("not today")


async def too_few(trajectories):
    return []


@pytest.mark.parametrize(
    ("scorer", "message"),
    [
        (raises, "KeyError: 'lost'"),
        (refuses, "not today"),
        (too_few, "0 rewards for 2 trajectories"),
        (in_thread(lambda trajectory: None), "the reward must be a finite number; it was None"),
    ],
)
def test_a_scorer_that_breaks_fails_all_it_was_given(scorer, message):
    events, rewards = answers(scorer, Score(ids=(0, 1), together=True))
    assert events == [ScoreFailed(id=id_, message=message) for id_ in (0, 1)]
    assert rewards == [0.5, 0.5, 0.5]


def test_what_was_dropped_meanwhile_is_answered_and_stays_dropped():
    events, _ = answers(by_place, Score(ids=(0,)), then=lambda _, buffer: buffer.drop([0, 1, 2]))
    assert events == [TrajectoryScored(id=0, reward=0.0, parts={"n": 0.0})]


def test_closing_ends_what_is_on_its_way():
    async def hangs(trajectories):
        await asyncio.Event().wait()

    events, _ = answers(hangs, Score(ids=(0, 1)), then=lambda scoring, _: scoring.close())
    assert events == []


class Knowing(Countdown):
    """Says what reward functions are to know of its task."""

    payload: object = None

    def reset(self, seed, task):
        observation, _ = super().reset(seed, task)
        return observation, {"payload": self.payload or {"answer": str(seed)}}


def live_with(directory, env: type, **rules) -> Live:
    values = {
        "steps": 1,
        "mode": MODES["rollart"],
        "batching": Batching(groups_per_step=2, group_size=2),
        "filter": Filter(drop_zero_variance=False),
        **rules,
    }
    return Live(
        rules=Rules(**values),
        directory=directory,
        make=lambda _slot: env(),
        setup={"scoring": "group"},
    )


def test_what_an_environment_says_of_its_task_reaches_the_function(tmp_path):
    live = live_with(tmp_path, Knowing)

    async def scorer(trajectories):
        assert len(trajectories) == 2
        return [Reward(value=float(each.task.payload["answer"])) for each in trajectories]

    live.scorer = scorer
    live.run()
    trained = [each for batch in live.batches for group in batch for each in group]
    assert [each.reward for each in trained] == [float(each.task.seed) for each in trained]
    proof = replay(tmp_path)
    assert (proof["same_commands"], proof["lost"], proof["ended"]["trained"]) == (True, 0, 4)


def test_without_reward_functions_nothing_joins_the_task(tmp_path):
    live = live_with(tmp_path, Knowing)
    live.setup = {"scoring": "env"}
    live.run()
    trained = [each for batch in live.batches for group in batch for each in group]
    assert [each.task.payload for each in trained] == [{}] * 4


def test_what_cannot_be_known_of_a_task_is_a_broken_contract(tmp_path):
    class Odd(Knowing):
        payload = "42"

    live = live_with(tmp_path, Odd, retry=Retry(give_up_after=1))
    with pytest.raises(
        UserError, match=r"env_contract: countdown: info\['payload'\] must be a dict"
    ):
        live.run()
