import asyncio
import sys
import threading
from contextlib import suppress

import pytest

from rollart.envs.trial import RandomPlayer, Watch, play, run_watched, try_env
from rollart.errors import ConfigError, EnvError

LONG_S = 20.0


class Waiting:
    """Hangs in the call it is told to."""

    def __init__(self, hangs_in=""):
        self.hangs_in = hangs_in
        self._wait("__init__")

    def reset(self, seed, task):
        self._wait("reset")
        return "go", {}

    def step(self, action):
        self._wait("step")
        return "done", 1.0, True, False, {}

    def close(self):
        self._wait("close")

    def _wait(self, call):
        if self.hangs_in == call:
            threading.Event().wait()


def watched(make, *, reset_s=LONG_S, step_s=LONG_S, watch=None):
    watch = watch or Watch(reset_s=reset_s, step_s=step_s)

    async def games(env):
        plays = [
            await play(env, RandomPlayer(), seed=seed, max_turns=3, watch=watch)
            for seed in range(5)
        ]
        return [each.success for each in plays]

    return run_watched(watch, make, games)


def test_games_that_end_are_returned():
    assert watched(Waiting) == [True] * 5


@pytest.mark.parametrize(
    ("call", "limit"), [("__init__", "reset_s"), ("reset", "reset_s"), ("step", "step_s")]
)
def test_a_call_that_hangs_is_left_behind(call, limit):
    with pytest.raises(EnvError, match=f"^{call} took more than 0.1 s$"):
        watched(lambda: Waiting(call), **{limit: 0.1})


def test_an_environment_that_cannot_close_loses_no_game():
    watch = Watch(reset_s=LONG_S, step_s=0.3)
    began_s = watch.clock.now()
    assert watched(lambda: Waiting("close"), watch=watch) == [True] * 5
    assert watch.clock.now() - began_s < LONG_S / 2
    assert watch.left_open == "close took more than 0.3 s and was not waited for"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError("the\nserver"), "close raised OSError: the server"),
        (asyncio.CancelledError(), "close raised CancelledError"),
    ],
)
def test_an_environment_whose_close_raises_loses_no_game_and_is_told(error, said):
    class Raising(Waiting):
        def close(self):
            raise error

    watch = Watch(reset_s=LONG_S, step_s=LONG_S)
    assert watched(Raising, watch=watch) == [True] * 5
    assert watch.left_open == said


def test_a_task_that_will_not_end_is_left_behind_like_a_close():
    class Lingering(Waiting):
        async def reset(self, seed, task):
            self.task = asyncio.create_task(self.linger())
            await asyncio.sleep(0)
            return "go", {}

        async def linger(self):
            while True:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(60)

    assert watched(Lingering, step_s=0.3) == [True] * 5


def test_an_environment_that_fails_and_cannot_close_is_told_by_its_failure():
    class Failing(Waiting):
        def step(self, action):
            raise OSError("away")

    with pytest.raises(OSError, match="away"):
        watched(lambda: Failing("close"), step_s=0.3)


def test_many_short_calls_may_take_longer_than_one():
    class Slow(Waiting):
        def step(self, action):
            threading.Event().wait(0.03)
            return super().step(action)

    assert watched(Slow, reset_s=0.1, step_s=0.1) == [True] * 5


def test_what_a_game_raises_is_raised():
    class Raising(Waiting):
        def step(self, action):
            raise SystemExit(3)

    with pytest.raises(SystemExit):
        watched(Raising)


WORLDS = """
import asyncio
import threading

closed = []

class Closing:
    def reset(self, seed, task): ...
    def step(self, action): ...
    async def close(self):
        await asyncio.sleep(0)
        closed.append("async")

class Failing(Closing):
    def close(self):
        closed.append("failed")
        raise OSError("cannot close")

class Stuck(Closing):
    def close(self):
        threading.Event().wait()

class Unmade(Closing):
    def __init__(self):
        threading.Event().wait()

class Leaving(Closing):
    def __init__(self):
        raise SystemExit(3)
"""


@pytest.fixture
def worlds(tmp_path, monkeypatch):
    (tmp_path / "tried_worlds.py").write_text(WORLDS)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("tried_worlds", None)


def tried(name, *, limit_s=LONG_S):
    return type(try_env(f"tried_worlds:{name}", options={}, limit_s=limit_s)).__name__


@pytest.mark.parametrize("on_a_loop", [False, True])
def test_an_environment_that_is_only_tried_is_closed_whatever_its_close_is(worlds, on_a_loop):
    async def close():
        return tried("Closing")

    assert (asyncio.run(close()) if on_a_loop else tried("Closing")) == "Closing"
    assert tried("Failing") == "Failing"
    assert sys.modules["tried_worlds"].closed == ["async", "failed"]


def test_an_environment_that_is_only_tried_may_hang_in_its_close(worlds):
    assert tried("Stuck", limit_s=0.3) == "Stuck"


def test_an_environment_that_cannot_be_made_is_named(worlds):
    with pytest.raises(ConfigError) as caught:
        tried("Unmade", limit_s=0.3)
    assert str(caught.value) == ("env.name = 'tried_worlds:Unmade': __init__ took more than 0.3 s")
    with pytest.raises(ConfigError, match=r"making tried_worlds:Leaving .* failed: SystemExit: 3"):
        tried("Leaving")
