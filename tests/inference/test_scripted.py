"""What the scripted engine adds to the contract."""

import math

import pytest
from tiny_models import make_request

from rollart.errors import ConfigError, InvariantError
from rollart.inference.scripted import ScriptedEngine
from rollart.types import Completion, TrajectoryId, Version


def test_a_script_says_what_is_sampled() -> None:
    engine = ScriptedEngine(lambda request: (*request.tokens, 9, 0, 5), tokens_per_step=3)
    engine.add(make_request(2, (4, 6), turn=1))
    assert engine.step() == []
    engine.update(Version(3), {}, keep_kv=True)
    assert engine.step() == [
        Completion(
            session=TrajectoryId(2),
            turn=1,
            tokens=(4, 6, 9, 0),
            logprobs=(0.0,) * 4,
            versions=(Version(0),) * 3 + (Version(3),),
            finish="stop",
        )
    ]


def test_draws_are_even_over_the_given_tokens() -> None:
    engine = ScriptedEngine(tokens=(3, 4), tokens_per_step=400)
    engine.add(make_request(1, (1,), max_tokens=400))
    (completion,) = engine.step()
    assert 150 < completion.tokens.count(3) < 250
    assert set(completion.logprobs) == {-math.log(2)}


def test_rows_limit_how_many_advance_together() -> None:
    engine = ScriptedEngine(lambda _: (1,), rows=2)
    for session in range(5):
        engine.add(make_request(session, (1,)))
    assert [[each.session for each in engine.step()] for _ in range(3)] == [[0, 1], [2, 3], [4]]


def test_useless_scripts_are_refused() -> None:
    with pytest.raises(ConfigError, match="tokens_per_step = 0"):
        ScriptedEngine(tokens_per_step=0)
    with pytest.raises(ConfigError, match="give at least one token id"):
        ScriptedEngine(tokens=())
    with pytest.raises(InvariantError, match="gave no tokens for session 1"):
        ScriptedEngine(lambda _: ()).add(make_request(1, (1,)))
