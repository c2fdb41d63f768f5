import asyncio
from dataclasses import replace

import pytest
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

from rollart.envs.frozen_lake import FrozenLake
from rollart.rollout.evaluation import (
    Evaluation,
    Evaluator,
    PosedProblem,
    greedy_figures,
    success_interval,
)


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
    low, high = success_interval(0.5, 8)
    assert result.figures == {
        "success_rate": 0.5,
        "success_low": low,
        "success_high": high,
        "reward": 1.0,
        "turns": 2.0,
        "problems": 1.0,
    }


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
        "success_low": success_interval(2 / 6, 6)[0],
        "success_high": success_interval(2 / 6, 6)[1],
        "reward": 4 / 6,
        "turns": 2.0,
        "problems": 1.0,
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


def test_success_has_wilsons_interval():
    assert success_interval(0.25, 8) == pytest.approx((0.0715, 0.5907), abs=1e-4)
    assert success_interval(0.0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert success_interval(1.0, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    low, high = success_interval(0.5, 400)
    assert high - low == pytest.approx(0.0976, abs=1e-3)


class Known(Countdown):
    """Says which of three problems it poses, and that two of them are kept from training."""

    def reset(self, seed, task):
        observation, info = super().reset(seed, task)
        number = seed % 3
        return observation, {
            **info,
            "problem": str(number),
            "split": ["test", "test", "train"][number],
        }


def test_an_evaluation_says_how_many_different_problems_it_had_and_which_are_trained_on():
    [result] = evaluate(lambda _slot: Known(), episodes=9)
    figures = result.figures
    assert (figures["problems"], figures["held_out"]) == (3.0, 2.0)
    assert figures["success_low"] == success_interval(figures["success_rate"], 3)[0]
    assert result.doubts == (
        "countdown: 1 of the 3 problems of this evaluation are also trained on: there are too few "
        "to keep some apart, so its success says nothing of new ones",
    )
    [result] = evaluate(lambda _slot: Countdown(), episodes=2)
    assert "held_out" not in result.figures
    assert result.doubts == (
        "countdown: its environment does not say which problems it keeps for evaluation "
        "(info['split'] of reset), so some may also be trained on",
    )
    assert set(result.problems.values()) == {PosedProblem(name="2 left", is_named=False)}


@pytest.mark.parametrize(("holes", "problems", "held_out"), [(0, 1.0, 0.0), (3, 20.0, 20.0)])
def test_a_lake_that_cannot_be_divided_says_so(holes, problems, held_out):
    def tasks(index: int):
        return replace(make_task(index), payload={"split": "test", "index": index})

    [result] = evaluate(lambda _slot: FrozenLake(holes=holes), episodes=20, tasks=tasks)
    assert (result.figures["problems"], result.figures["held_out"]) == (problems, held_out)
    assert bool(result.doubts) == (held_out == 0)


def test_greedy_success_has_names_of_its_own():
    async def run() -> tuple[Evaluation, Evaluation]:
        async with running_proxy() as proxy, asyncio.timeout(60):
            evaluator = Evaluator(
                setups={"countdown": make_setup(lambda _slot: Countdown())},
                access=make_access({ENGINE: proxy}),
                tasks=make_task,
                slots=range(2),
                seed=5,
            )
            results = await evaluator.run(4), await evaluator.run(4, is_greedy=True)
            await evaluator.close()
            return results

    sampled, greedy = asyncio.run(run())
    rate, low, high = (sampled.figures[f"success_{name}"] for name in ("rate", "low", "high"))
    assert greedy_figures(greedy) == {
        "greedy_success_rate": rate,
        "greedy_success_low": low,
        "greedy_success_high": high,
    }
