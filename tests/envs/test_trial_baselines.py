import asyncio

import pytest

from rollart.envs.frozen_lake import FrozenLake
from rollart.envs.trial import NoisyPlayer, Play, RandomPlayer, play
from rollart.errors import ConfigError, EnvError


class Countdown:
    """Async and silent about actions: ends after three steps."""

    def __init__(self, *, truncates=False, reward=1.0):
        self.left = 3
        self.truncates = truncates
        self.reward = reward

    async def reset(self, seed, task):
        self.left = 3
        return f"{self.left}", {}

    async def step(self, action):
        await asyncio.sleep(0)
        self.left -= 1
        ends = self.left == 0
        return (
            f"{self.left}",
            self.reward if ends else 0.0,
            ends and not self.truncates,
            ends and self.truncates,
            {},
        )


def run(env, player, *, seed=0, max_turns=10) -> Play:
    return asyncio.run(play(env, player, seed=seed, max_turns=max_turns))


def test_an_async_environment_is_played_and_success_read_from_the_reward():
    record = run(Countdown(), RandomPlayer())
    assert record == Play(
        observations=("3", "2", "1", "0"),
        actions=record.actions,
        rewards=(0.0, 0.0, 1.0),
        stop="terminated",
        success=True,
    )
    assert all(1 <= len(action) <= 8 for action in record.actions)


def test_success_is_read_from_all_rewards_as_in_training():
    class Early(Countdown):
        async def step(self, action):
            observation, _, *ends = await super().step(action)
            return observation, 1.0 if self.left == 1 else 0.0, *ends

    record = run(Early(), RandomPlayer())
    assert (record.rewards, record.success) == ((0.0, 1.0, 0.0), True)


@pytest.mark.parametrize(
    ("env", "max_turns", "stop"),
    [
        (Countdown(truncates=True), 10, "truncated"),
        (Countdown(), 2, "max_turns"),
        (Countdown(reward=0.0), 10, "terminated"),
    ],
)
def test_an_episode_without_a_rewarded_end_did_not_succeed(env, max_turns, stop):
    record = run(env, RandomPlayer(), max_turns=max_turns)
    assert (record.stop, record.success) == (stop, False)


def test_the_random_player_keeps_to_the_named_actions():
    record = run(FrozenLake(holes=0), RandomPlayer(), max_turns=50)
    assert set(record.actions) <= {"up", "down", "left", "right"}
    assert not any("edge" in observation for observation in record.observations)


def test_a_noisier_player_succeeds_less():
    rates = [
        sum(run(FrozenLake(), NoisyPlayer(noise=noise), seed=seed).success for seed in range(200))
        for noise in (0.0, 0.5, 1.0)
    ]
    assert rates[0] == 200
    assert 40 < rates[1] < 100
    assert rates[2] < 20


def test_a_noisy_player_needs_an_environment_that_suggests():
    with pytest.raises(ConfigError, match="has no method suggest"):
        run(Countdown(), NoisyPlayer(noise=0.0))
    with pytest.raises(ConfigError, match="between 0 and 1"):
        NoisyPlayer(noise=1.5)


def test_rubbish_from_an_environment_is_an_env_error():
    class Rubbish(Countdown):
        async def step(self, action):
            return "x", float("nan"), False, False, {}

    with pytest.raises(EnvError, match="finite reward"):
        run(Rubbish(), RandomPlayer())


def test_a_game_is_told_its_split_and_index():
    class Telling(Countdown):
        async def reset(self, seed, task):
            return f"{seed} {task['split']} {task['index']}", {}

    assert run(Telling(), RandomPlayer(), seed=7).observations[0] == "7 train 7"
    record = asyncio.run(play(Telling(), RandomPlayer(), seed=7, index=2, max_turns=1))
    assert record.observations[0] == "7 train 2"


def test_actions_named_once_hold_until_others_are_named():
    class Naming(Countdown):
        async def reset(self, seed, task):
            await super().reset(seed, task)
            return "3", {"actions": ["a"]}

        async def step(self, action):
            *result, info = await super().step(action)
            return *result, {"actions": ["b"]} if self.left == 1 else info

    assert run(Naming(), RandomPlayer()).actions == ("a", "a", "b")


def test_suggestions_may_be_awaited_and_must_be_text():
    class Suggesting(Countdown):
        said = "go"

        async def suggest(self):
            return self.said

    assert run(Suggesting(), NoisyPlayer(noise=0.0)).actions == ("go",) * 3
    Suggesting.said = 3
    with pytest.raises(EnvError, match=r"suggest\(\) must return a str; it returned 3"):
        run(Suggesting(), NoisyPlayer(noise=0.0))
