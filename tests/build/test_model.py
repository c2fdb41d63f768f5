"""Tiny models are kept for what determines them, and environments they are built from closed."""

import importlib
import sys

import pytest

from rollart.build.model import prepare_model

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
def build(small, tmp_path, monkeypatch):
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
        return prepare_model(config, lambda _text: None)

    yield build
    sys.modules.pop("cached_game", None)


def test_another_environment_of_the_same_name_gets_a_model_of_its_own(build):
    first = build("left")
    assert build("left") == first
    second = build("sideways")
    assert second != first
    assert build("left") == first


def test_environments_a_model_was_built_from_are_closed(build):
    build("upwards")
    game = sys.modules["cached_game"].Game
    assert (game.made, game.closed) == (2, 2)
