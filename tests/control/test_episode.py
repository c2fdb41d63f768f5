import pytest

from rollart.control.episode import Turns
from rollart.types import EpisodeLimits


@pytest.mark.parametrize(
    ("terminated", "truncated", "stop"),
    [
        (True, False, "terminated"),
        (True, True, "terminated"),
        (False, True, "truncated"),
        (False, False, None),
    ],
)
def test_the_environment_ends_an_episode_before_the_limits_do(terminated, truncated, stop):
    turns = Turns(EpisodeLimits(max_turns=2))
    assert turns.take(terminated=terminated, truncated=truncated) == stop
    assert turns.count == 1


def test_the_last_turn_ends_an_episode():
    turns = Turns(EpisodeLimits(max_turns=2))
    ends = [turns.take(terminated=False, truncated=False) for _ in range(2)]
    assert ends == [None, "max_turns"]


def test_what_is_read_and_sampled_leaves_less_room_until_none_is_left():
    turns = Turns(EpisodeLimits(max_tokens=10))
    assert turns.show(4) is None
    turns.sample(3)
    assert (turns.tokens, turns.room) == (7, 3)
    assert turns.show(3) == "max_tokens"
