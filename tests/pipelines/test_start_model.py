"""Tiny models are kept for what determines them, and environments they are built from closed."""

import importlib
import sys

import pytest

from rollart.errors import ConfigError
from rollart.pipelines.start_model import prepare_model

GAME = """
class Game:
    system_prompt = "Say {word}"
    made = closed = 0

    def __init__(self):
        Game.made += 1

    def reset(self, seed, task):
        return "say {word}", {{"actions": ["{word}"]}}

    def step(self, action):
        return "done", float(action == "{word}"), True, False, {{}}

    def suggest(self):
        return "{word}"

    async def close(self):
        Game.closed += 1
"""


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def build(small, tmp_path, monkeypatch, said):
    monkeypatch.syspath_prepend(str(tmp_path))

    def build(word: str):
        (tmp_path / "cached_game.py").write_text(GAME.format(word=word))
        sys.modules.pop("cached_game", None)
        importlib.invalidate_caches()
        config = small(
            "cached",
            "tasks.letters.env='cached_game:Game'",
            "model.warm_start=true",
            "model.warm_start_episodes=2",
            "model.warm_start_epochs=1",
        )
        return prepare_model(config, said.append)

    yield build
    sys.modules.pop("cached_game", None)


def test_another_environment_of_the_same_name_gets_a_model_of_its_own(build):
    first = build("left")
    assert build("left") == first
    second = build("sideways")
    assert second != first
    assert build("left") == first


def test_it_is_said_which_model_is_used(build, said):
    model = build("downwards")
    assert f"model: built for these tasks earlier, in {model}" not in said
    build("downwards")
    assert said[-1] == f"model: built for these tasks earlier, in {model}"


def test_an_environment_that_hangs_is_named_before_the_warm_start(small, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "hanging_game.py").write_text(
        GAME.format(word="x") + "    def step(self, action):\n"
        "        import threading\n        threading.Event().wait()\n"
    )
    game = ["tasks.letters.env='hanging_game:Game'", "tasks.letters.step_timeout_s=0.1"]
    config = small("hung", *game)
    with pytest.raises(ConfigError) as caught:
        prepare_model(config, lambda _text: None)
    assert str(caught.value) == (
        "tasks.letters.env = 'hanging_game:Game': a game played to build the tiny model failed: "
        "step took more than 0.1 s"
    )


def test_an_environment_that_cannot_be_made_or_closed_holds_up_no_model(
    small, tmp_path, monkeypatch
):
    monkeypatch.syspath_prepend(str(tmp_path))
    hang = "        import threading\n        threading.Event().wait()\n"
    (tmp_path / "stuck_game.py").write_text(
        GAME.format(word="x") + f"    def close(self):\n{hang}\n"
        f"class Unmade(Game):\n    def __init__(self):\n{hang}"
    )
    limit = "tasks.letters.reset_timeout_s=0.3"
    unmade = small("unmade", "tasks.letters.env='stuck_game:Unmade'", limit)
    with pytest.raises(ConfigError, match=r"tasks.letters.env = .* __init__ took more than 0.3 s"):
        prepare_model(unmade, lambda _text: None)
    stuck = small("stuck", "tasks.letters.env='stuck_game:Game'")
    assert (prepare_model(stuck, lambda _text: None) / "config.json").is_file()


def test_a_first_prompt_without_room_for_an_action_is_refused_before_the_warm_start(small):
    few = ["model.warm_start=true", "model.warm_start_episodes=20"]
    config = small("short", *few, "tasks.letters.max_tokens=5")
    with pytest.raises(ConfigError, match=r"tasks.letters.max_tokens = 5: the first prompt alone"):
        prepare_model(config, lambda _text: None)


def test_environments_a_model_was_built_from_are_closed(build):
    build("upwards")
    game = sys.modules["cached_game"].Game
    assert (game.made, game.closed) == (2, 2)
