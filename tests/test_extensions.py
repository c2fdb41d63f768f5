"""One file per extension: a toy of each kind, from a temporary module each, trains a step.

No other file is touched: each is named in the config alone.
"""

import sys

import pytest
from extension_runs import train_with

from rollart.errors import ConfigError
from rollart.plugins import find, known_names

ENV = """
class Letter:
    def __init__(self, letter="a"):
        self.letter = letter

    def reset(self, seed, task):
        return f"say {self.letter}", {"payload": {"letter": self.letter}}

    def step(self, action):
        return "", float(self.letter in action), True, False, {}
"""
REWARD = '''
from pathlib import Path

def length(trajectory, *, note):
    """Rewards differ within a group, so that there is something to learn."""
    Path(note).write_text(trajectory.task.payload["letter"])
    return len(trajectory.turns[-1].action) + trajectory.id / 10
'''
STORE = """
from pathlib import Path

class Drawer:
    def __init__(self, place):
        self.place = place
        Path(place).mkdir(parents=True, exist_ok=True)

    def put(self, key, data):
        draft = Path(self.place, f"{key}.draft")
        draft.write_bytes(data)
        draft.replace(Path(self.place, key))

    def get(self, key):
        try:
            return Path(self.place, key).read_bytes()
        except FileNotFoundError:
            raise KeyError(key) from None

    def delete(self, key):
        Path(self.place, key).unlink(missing_ok=True)

    def close(self):
        pass
"""
ALGORITHM = '''
from dataclasses import dataclass
from pathlib import Path

from rollart.types import AlgorithmNeeds, TokenLosses

@dataclass(frozen=True, kw_only=True)
class Push:
    """Raises the likelihood of every sampled token by the same amount."""

    by: float = 1.0
    needs = AlgorithmNeeds()

    def advantages(self, batch):
        Path("trained").write_text(str(len(batch.rewards)))
        return batch.owners * 0.0 + self.by

    def token_weights(self, counts, groups):
        return counts * 0 + 1 / max(1, counts.sum())

    def loss(self, terms):
        return TokenLosses(losses=-terms.advantages * terms.logprobs)
'''
ENGINE = '''
from dataclasses import dataclass

from rollart.inference.scripted import ScriptedEngine

@dataclass(frozen=True, kw_only=True)
class Options:
    first: int = 5

class Counting(ScriptedEngine):
    """Samples ascending token ids."""

    Options = Options

    @classmethod
    def open(cls, model, *, options, version, threads):
        def count(request):
            return [options.first + n for n in range(request.sampling.max_tokens)]

        return cls(count, version=version)
'''
PLAYER = '''
from rollart.rollout.players.token_turns import Episode

class Shout:
    """Takes what the policy says in capitals as its action, once."""

    async def play(self, attempt):
        observation, _ = await attempt.reset()
        episode = Episode(attempt.spec, renderer=attempt.renderer)
        text = episode.complete(await attempt.complete(episode.start(observation)))
        episode.observe(await attempt.step(text.upper()))
        return episode.finish()
'''
MODULES = {
    "toy_push": ALGORITHM,
    "toy_engine": ENGINE,
    "toy_env": ENV,
    "toy_player": PLAYER,
    "toy_reward": REWARD,
    "toy_store": STORE,
}
FRAGMENTS = {
    "algorithm": '[algorithm]\ntype = "toy_push:Push"\nby = 0.5',
    "engine": '[engine]\nname = "toy_engine:Counting"\noptions = { first = 6 }',
    "player": '[tasks.echo]\nplayer = "toy_player:Shout"',
    "env": '[tasks.echo]\nenv = "toy_env:Letter"\noptions = { letter = "b" }',
    "reward": '[tasks.echo.rewards.x]\nfunction = "toy_reward:length"\noptions.note = "scored"',
    "store": '[weights]\nstore = "toy_store:Drawer"\nplace = "drawer"',
}


@pytest.fixture
def modules(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    yield tmp_path
    for name in MODULES:
        sys.modules.pop(name, None)


def test_a_toy_of_each_kind_trains_a_step(modules):
    run = train_with(modules, *FRAGMENTS.values())
    assert run.summary["steps"] == 1
    assert (modules / "scored").read_text() == "b"
    assert (modules / "trained").read_text() == "4"
    assert "Counting" in next(iter(run.summary["engines"]))
    assert any((modules / "drawer").iterdir())
    [row] = [row for row in run.metrics if "reward_mean" in row]
    assert row["reward_mean"] > 0
    assert run.replay()["lost"] == 0


@pytest.mark.parametrize("kind", ["algorithm", "engine", "env", "player", "reward", "store"])
def test_an_unknown_name_is_answered_with_the_nearest_and_with_how_to_name_ones_own(kind):
    known = known_names(kind)[0]
    with pytest.raises(ConfigError) as caught:
        find(kind, f"{known}x", field="a.field")
    said = str(caught.value)
    noun = {"env": "environment", "reward": "reward function", "store": "weight store"}.get(
        kind, kind
    )
    assert said.startswith(f"a.field = '{known}x': no such {noun}; did you mean {known}? Shipped: ")
    own = "function" if kind == "reward" else "Class"
    assert said.endswith(f"; or name your own as module:{own} or path/to/file.py:{own}")


def test_an_installed_package_gives_its_objects_names(tmp_path, monkeypatch):
    info = tmp_path / "toys-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rollart.envs]\nletter = toy_installed:Letter\n")
    (tmp_path / "toy_installed.py").write_text(ENV)
    monkeypatch.syspath_prepend(tmp_path)
    assert "letter" in known_names("env")
    assert find("env", "letter", field="tasks.x.env").__name__ == "Letter"
