"""A player from one file of the user's own plays the attempts of a real run."""

import json

from rollart.events import TrajectoryFinished
from rollart.observe.log import read_log
from rollart.observe.replay import replay
from rollart.pipelines.agentic import train

OWN = '''
"""Plays as the built-in player does, and stops after the first turn."""
from dataclasses import replace

from rollart.rollout.players.token_turns import Episode


class FirstTurn:
    async def play(self, attempt):
        observation, _ = await attempt.reset()
        episode = Episode(attempt.spec, renderer=attempt.renderer)
        completion = await attempt.complete(episode.start(observation))
        outcome = await attempt.step(await attempt.parse(episode.complete(completion)))
        episode.observe(replace(outcome, truncated=True))
        return episode.finish()
'''


def test_a_run_is_played_by_a_player_of_ones_own(small, runs, tmp_path):
    file = tmp_path / "own_player.py"
    file.write_text(OWN)
    assert train(small("own", "run.steps=1", f"tasks.letters.player={file}:FirstTurn")) == 0
    (part,) = read_log(runs / "own" / "events.jsonl")
    infos = [
        record.event.info for record in part.records if isinstance(record.event, TrajectoryFinished)
    ]
    assert len(infos) >= 8
    assert {info.turns for info in infos} == {1}
    assert json.loads((runs / "own" / "summary.json").read_text())["steps"] == 1
    assert replay(runs / "own")["ended"] == {"trained": 8}
