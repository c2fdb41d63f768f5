"""The Engine port's contract, run over every engine that ships."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from tiny_models import make_engine, make_model, make_request, make_tokens, weights_of

from rollart.errors import ConfigError, InvariantError
from rollart.inference.scripted import ScriptedEngine
from rollart.ports import Engine
from rollart.types import Completion, TrajectoryId, Version

_MODEL = make_model("qwen3")
_WEIGHTS = weights_of(_MODEL)
_COUNTERS = {"prefill_tokens", "reused_tokens", "sampled_tokens", "steps", "recomputed_tokens"}

MakeEngine = Callable[[], Engine]


@pytest.fixture(params=["scripted", "torch"])
def make(request: pytest.FixtureRequest) -> MakeEngine:
    if request.param == "scripted":
        return lambda: ScriptedEngine(tokens=range(1, 50))
    return lambda: make_engine(_MODEL)


def run(engine: Engine) -> dict[tuple[int, int], Completion]:
    done: dict[tuple[int, int], Completion] = {}
    while engine.busy:
        for completion in engine.step():
            done[completion.session, completion.turn] = completion
    return done


def test_an_idle_engine_does_nothing(make: MakeEngine) -> None:
    engine = make()
    assert (engine.busy, engine.step(), engine.version) == (False, [], Version(0))
    assert engine.stats() == dict.fromkeys(_COUNTERS, 0)


def test_every_request_is_completed_once_with_equal_lengths(make: MakeEngine) -> None:
    engine = make()
    for session in range(12):
        engine.add(make_request(session, make_tokens(5 + session, seed=session)))
    done = run(engine)
    assert sorted(done) == [(session, 0) for session in range(12)]
    for completion in done.values():
        count = len(completion.tokens)
        assert 1 <= count <= 8
        assert (len(completion.logprobs), completion.versions) == (count, (Version(0),) * count)
        assert all(logprob <= 0 for logprob in completion.logprobs)
        assert completion.finish == ("stop" if completion.tokens[-1] == 0 else "length")
    assert engine.stats()["sampled_tokens"] == sum(len(each.tokens) for each in done.values())


def test_a_stop_token_ends_a_completion_and_is_part_of_it(make: MakeEngine) -> None:
    engine = make()
    engine.add(make_request(1, make_tokens(6, seed=1)))
    drawn = run(engine)[1, 0].tokens
    engine = make()
    engine.add(replace(make_request(1, make_tokens(6, seed=1)), stop=(drawn[3],)))
    completion = run(engine)[1, 0]
    cut = drawn[: drawn.index(drawn[3]) + 1]
    assert (completion.tokens, completion.finish) == (cut, "stop")


def test_the_budget_ends_a_completion(make: MakeEngine) -> None:
    engine = make()
    engine.add(replace(make_request(1, make_tokens(6, seed=1), max_tokens=3), stop=()))
    completion = run(engine)[1, 0]
    assert (len(completion.tokens), completion.finish) == (3, "length")


def test_the_same_seed_gives_the_same_tokens_whatever_the_batch(make: MakeEngine) -> None:
    alone = make()
    alone.add(make_request(3, make_tokens(9, seed=3)))
    expected = run(alone)[3, 0].tokens
    crowded = make()
    for session in range(7):
        crowded.add(make_request(session, make_tokens(9, seed=session)))
    assert run(crowded)[3, 0].tokens == expected


def test_other_seeds_give_other_tokens(make: MakeEngine) -> None:
    engine = make()
    for session in range(6):
        engine.add(replace(make_request(session, make_tokens(9, seed=0)), seed=session, stop=()))
    assert len({completion.tokens for completion in run(engine).values()}) == 6


def test_abort_returns_what_was_sampled(make: MakeEngine) -> None:
    engine = make()
    engine.add(replace(make_request(1, make_tokens(6, seed=1)), stop=()))
    for _ in range(3):
        assert engine.step() == []
    completion = engine.abort(TrajectoryId(1))
    assert completion is not None
    assert (len(completion.tokens), completion.finish) == (3, "abort")
    assert len(completion.logprobs) == len(completion.versions) == 3
    assert (engine.busy, engine.abort(TrajectoryId(1))) == (False, None)


def test_abort_of_a_request_not_yet_started_returns_nothing_sampled(make: MakeEngine) -> None:
    engine = make()
    engine.add(make_request(1, make_tokens(6, seed=1), turn=2))
    assert engine.abort(TrajectoryId(1)) == Completion(
        session=TrajectoryId(1), turn=2, tokens=(), logprobs=(), versions=(), finish="abort"
    )
    assert not engine.busy


def test_an_aborted_session_can_ask_again(make: MakeEngine) -> None:
    engine = make()
    prompt = make_tokens(6, seed=1)
    engine.add(make_request(1, prompt))
    engine.step()
    engine.abort(TrajectoryId(1))
    engine.add(make_request(1, prompt))
    fresh = make()
    fresh.add(make_request(1, prompt))
    assert run(engine)[1, 0].tokens == run(fresh)[1, 0].tokens


def test_tokens_carry_the_version_that_sampled_them(make: MakeEngine) -> None:
    for keep_kv in (False, True):
        engine = make()
        engine.add(replace(make_request(1, make_tokens(6, seed=1)), stop=()))
        engine.step()
        engine.step()
        engine.update(Version(7), _WEIGHTS, keep_kv=keep_kv)
        assert engine.version == Version(7)
        completion = run(engine)[1, 0]
        assert completion.versions == (Version(0),) * 2 + (Version(7),) * 6
        recomputed = engine.stats()["recomputed_tokens"]
        assert recomputed == (0 if keep_kv else 7)


def test_only_running_requests_keep_what_they_read_under_older_weights(make: MakeEngine) -> None:
    engine = make()
    prompt = make_tokens(40, seed=1)
    engine.add(replace(make_request(1, prompt), stop=()))
    idle = run(engine)[1, 0]
    engine.add(replace(make_request(2, make_tokens(40, seed=2)), stop=()))
    engine.step()
    engine.update(Version(1), _WEIGHTS, keep_kv=True)
    running = run(engine)[2, 0]
    before = engine.stats()["reused_tokens"]
    for session, start in ((1, prompt + idle.tokens), (3, prompt)):
        engine.add(make_request(session, start, turn=1))
    engine.add(make_request(2, make_tokens(40, seed=2) + running.tokens, turn=1))
    engine.step()
    # Sessions 1 and 3 share a prompt, which both have read under the new weights.
    assert engine.stats()["reused_tokens"] - before in (0, 39)


def test_a_second_turn_reuses_what_the_first_left(make: MakeEngine) -> None:
    engine = make()
    prompt = make_tokens(20, seed=1)
    engine.add(replace(make_request(1, prompt), stop=()))
    first = run(engine)[1, 0]
    longer = prompt + first.tokens + make_tokens(4, seed=2)
    engine.add(make_request(1, longer, turn=1))
    run(engine)
    stats = engine.stats()
    assert (stats["prefill_tokens"], stats["reused_tokens"]) == (20 + 5, 27)


def test_a_forgotten_session_starts_afresh(make: MakeEngine) -> None:
    engine = make()
    prompt = make_tokens(10, seed=1)
    engine.add(make_request(1, prompt))
    run(engine)
    engine.forget(TrajectoryId(1))
    engine.forget(TrajectoryId(99))
    engine.add(make_request(1, prompt))
    run(engine)
    stats = engine.stats()
    assert (stats["prefill_tokens"], stats["reused_tokens"]) == (20, 0)


def test_after_an_update_with_nothing_running_an_engine_is_as_new(make: MakeEngine) -> None:
    used, new = make(), make()
    for session in (5, 3, 8):
        used.add(make_request(session, make_tokens(30, seed=session)))
    run(used)
    used.update(Version(1), _WEIGHTS, keep_kv=False)
    new.update(Version(1), _WEIGHTS, keep_kv=False)
    before = used.stats()
    for engine in (used, new):
        for session in (3, 4, 8):
            engine.add(make_request(session, make_tokens(30, seed=session)))
    assert run(used) == run(new)
    gained = {name: value - before[name] for name, value in used.stats().items()}
    assert gained == new.stats()


def test_one_session_has_one_request_at_a_time(make: MakeEngine) -> None:
    engine = make()
    engine.add(make_request(1, make_tokens(6, seed=1)))
    with pytest.raises(InvariantError, match="session 1 already has a request"):
        engine.add(make_request(1, make_tokens(6, seed=1), turn=1))


def test_a_budget_of_no_tokens_is_refused(make: MakeEngine) -> None:
    with pytest.raises(ConfigError, match=r"sampling\.max_tokens = 0: must be at least 1"):
        make().add(make_request(1, make_tokens(6, seed=1), max_tokens=0))
