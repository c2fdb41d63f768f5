import threading

import pytest

from rollart.envs.players import RandomPlayer, play
from rollart.envs.watching import Watch, run_watched
from rollart.errors import EnvError

LONG_S = 20.0


class Waiting:
    """Hangs in the call it is told to."""

    def __init__(self, hangs_in=""):
        self.hangs_in = hangs_in

    def reset(self, seed, task):
        self._wait("reset")
        return "go", {}

    def step(self, action):
        self._wait("step")
        return "done", 1.0, True, False, {}

    def _wait(self, call):
        if self.hangs_in == call:
            threading.Event().wait()


def watched(env, *, reset_s=LONG_S, step_s=LONG_S):
    watch = Watch(reset_s=reset_s, step_s=step_s)

    async def work():
        plays = [
            await play(env, RandomPlayer(), seed=seed, max_turns=3, watch=watch)
            for seed in range(5)
        ]
        return [each.success for each in plays]

    return run_watched(watch, work)


def test_games_that_end_are_returned():
    assert watched(Waiting()) == [True] * 5


@pytest.mark.parametrize("call", ["reset", "step"])
def test_a_call_that_hangs_is_left_behind(call):
    limits = {f"{call}_s": 0.1}
    with pytest.raises(EnvError, match=f"^{call} took more than 0.1 s$"):
        watched(Waiting(call), **limits)


def test_many_short_calls_may_take_longer_than_one():
    class Slow(Waiting):
        def step(self, action):
            threading.Event().wait(0.03)
            return super().step(action)

    assert watched(Slow(), reset_s=0.1, step_s=0.1) == [True] * 5


def test_what_a_game_raises_is_raised():
    class Raising(Waiting):
        def step(self, action):
            raise SystemExit(3)

    with pytest.raises(SystemExit):
        watched(Raising())
