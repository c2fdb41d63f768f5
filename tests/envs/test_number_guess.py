import pytest

from rollart.envs.number_guess import NumberGuess
from rollart.errors import ConfigError


def test_guesses_are_told_higher_or_lower_until_right():
    env = NumberGuess()
    observation, info = env.reset(3, {})
    assert observation == "1 to 10"
    assert info["actions"] == [str(number) for number in range(1, 11)]
    assert env.step("1")[:4] == ("higher", 0.0, False, False)
    assert env.step("10")[:4] == ("lower", 0.0, False, False)
    assert env.step("11")[:4] == ("illegal, 1 to 10", 0.0, False, False)
    assert env.step("4")[:4] == ("right", 1.0, True, False)


def test_the_last_wrong_guess_ends_the_episode():
    env = NumberGuess(guesses=1)
    env.reset(3, {})
    assert env.step("9")[:4] == ("lower", 0.0, True, False)


@pytest.mark.parametrize("largest", [2, 7, 15])
def test_the_middle_of_what_is_left_always_finds_it_in_time(largest):
    for seed in range(100):
        env = NumberGuess(largest=largest)
        env.reset(seed, {})
        rewards = [env.step(env.suggest())]
        while not rewards[-1][2]:
            rewards.append(env.step(env.suggest()))
        assert rewards[-1][1] == 1.0


@pytest.mark.parametrize("options", [{"largest": 1}, {"guesses": 0}])
def test_wrong_options_are_refused(options):
    with pytest.raises(ConfigError):
        NumberGuess(**options)
