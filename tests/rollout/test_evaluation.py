import asyncio
from dataclasses import replace

from live_parts import (
    CRASHED,
    ENGINE,
    Countdown,
    Crashing,
    make_access,
    make_setup,
    make_task,
    running_proxy,
)

from rollart.rollout.evaluation import Evaluation, Evaluator


class Odd(Countdown):
    """Crashes on every fourth task."""

    def reset(self, seed, task):
        if seed % 4 == 3:
            raise OSError("lost")
        return super().reset(seed, task)


def evaluate(make, *, episodes: int, runs: int = 1, concurrency: int = 3, tasks=make_task):
    async def run() -> list[Evaluation]:
        async with running_proxy() as proxy, asyncio.timeout(60):
            setup = make_setup(make)
            evaluator = Evaluator(
                setups={"countdown": setup, "other": setup},
                access=make_access({ENGINE: proxy}),
                tasks=tasks,
                slots=range(concurrency),
                seed=5,
            )
            results = [await evaluator.run(episodes) for _ in range(runs)]
            await evaluator.close()
            assert proxy.in_flight == 0
            return results

    return asyncio.run(run())


def test_each_task_is_played_once_in_the_order_of_the_stream():
    [result] = evaluate(lambda _slot: Countdown(), episodes=8)
    assert [t.task.id for t in result.trajectories] == list(range(8))
    assert result.failed == 0
    assert result.figures == {"success_rate": 0.5, "reward": 1.0, "turns": 2.0}


def test_evaluations_repeat_and_use_ids_no_training_run_has():
    first, second = evaluate(lambda _slot: Countdown(), episodes=4, runs=2)
    assert first.figures == second.figures
    ids = [t.id for result in (first, second) for t in result.trajectories]
    assert len(set(ids)) == 8
    assert max(ids) < 0


def test_episodes_that_infrastructure_cut_short_count_for_nothing():
    [result] = evaluate(lambda _slot: Odd(), episodes=8)
    assert result.figures == {
        "success_rate": 2 / 6,
        "reward": 4 / 6,
        "turns": 2.0,
        "failed": 2.0,
    }


def test_when_every_episode_fails_there_is_no_figure_but_a_reason():
    [result] = evaluate(lambda _slot: Crashing(), episodes=3)
    assert result.figures == {"failed": 3.0}
    assert result.last_failure == CRASHED


def test_tasks_of_several_kinds_are_also_told_apart():
    def tasks(index: int):
        return replace(make_task(index), env="other" if index % 2 else "countdown")

    [result] = evaluate(lambda _slot: Countdown(), episodes=4, tasks=tasks)
    assert result.figures["countdown/success_rate"] == 0.0
    assert result.figures["other/success_rate"] == 1.0


def test_evaluations_asked_for_together_never_share_an_environment():
    class Alone(Countdown):
        playing = False

        def reset(self, seed, task):
            assert not self.playing, "two episodes in one environment"
            self.playing = True
            return super().reset(seed, task)

        def step(self, action):
            result = super().step(action)
            self.playing = not result[2]
            return result

    async def run() -> list[Evaluation]:
        async with running_proxy() as proxy, asyncio.timeout(60):
            evaluator = Evaluator(
                setups={"countdown": make_setup(lambda _slot: Alone())},
                access=make_access({ENGINE: proxy}),
                tasks=make_task,
                slots=range(2),
                seed=5,
            )
            results = await asyncio.gather(evaluator.run(6), evaluator.run(6))
            await evaluator.close()
            return results

    first, second = asyncio.run(run())
    assert first.failed == second.failed == 0
    assert first.figures == second.figures
