"""What an EnvManager gives a player, and what it makes of what the player does."""

import asyncio
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from live_parts import Countdown, make_access, make_setup, make_task, running_proxy

from rollart.config.checks import find_player
from rollart.errors import ConfigError, EngineError, ModelError, PrunedError, ScoreError
from rollart.inference.driver import RequestError
from rollart.rollout.engine_client import ResidentPolicies
from rollart.rollout.env_contract import AttemptError
from rollart.rollout.env_manager import EnvManager
from rollart.rollout.env_slot import EnvSlot, close_all
from rollart.types import (
    ArraySteps,
    AttemptSpec,
    EngineId,
    Failure,
    GroupId,
    Played,
    Request,
    SlotId,
    TokenTurns,
    TrajectoryId,
    Version,
)

ENGINE = EngineId("e")

OWN_PLAYER = '''
"""A player of one's own: asks once, acts once."""
from rollart.types import Played, Request, TokenTurns, Turn, open_chat


class OneTurn:
    async def play(self, attempt):
        observation, _ = await attempt.reset()
        spec, renderer = attempt.spec, attempt.renderer
        prompt = renderer.start(open_chat("briefly", observation))
        completion = await attempt.complete(
            Request(session=spec.id, turn=0, domain=spec.task.domain, tokens=prompt,
                    sampling=spec.sampling, stop=renderer.stop, seed=spec.seed)
        )
        action = await attempt.parse(renderer.decode(completion.tokens))
        outcome = await attempt.step(action)
        turn = Turn(prompt_tokens=prompt, tokens=completion.tokens, logprobs=completion.logprobs,
                    versions=completion.versions, observation=observation, action=action,
                    reward=outcome.reward)
        return Played(payload=TokenTurns(turns=(turn,)), stop="truncated", success=True,
                      reward=outcome.reward)


async def no_class(attempt):
    pass


class NoPlay:
    pass


class Greedy:
    def __init__(self, options):
        pass

    async def play(self, attempt):
        pass
'''


def play(player=None, make=lambda _slot: Countdown(), generator=None, policies=None, **changes):
    """Play one attempt; return what came of it, the births told and what it cost."""

    async def run():
        async with running_proxy(None) as proxy, asyncio.timeout(60):
            setup = make_setup(make, **({"player": player} if player else {}), **changes)
            spec = AttemptSpec(
                id=TrajectoryId(1),
                group=GroupId(0),
                task=make_task(1),
                system="",
                limits=setup.limits,
                sampling=setup.sampling,
                seed=3,
            )
            slot, births = EnvSlot(SlotId(0)), []
            access = replace(make_access({ENGINE: generator or proxy}), policies=policies)
            manager = EnvManager(spec, setup=setup, slot=slot, access=access)
            try:
                result = await manager.play(births.append)
            except AttemptError as error:
                result = error.failure
            await close_all([slot])
            return result, births, manager.cost

    return asyncio.run(run())


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN_PLAYER)
    return lambda name: find_player("countdown", f"{path}:{name}")


def test_a_player_of_ones_own_plays_attempts(own):
    record, births, cost = play(own("OneTurn"))
    (turn,) = record.turns
    assert "".join(map(chr, turn.prompt_tokens)) == "briefly|2 left>"
    assert (turn.action, record.stop, record.reward, record.success) == (
        "go",
        "truncated",
        1.0,
        True,
    )
    assert (births, record.born, cost, record.cost) == ([Version(0)], Version(0), 3, 3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_class", "a player is a class with a method play"),
        ("NoPlay", r"give NoPlay a method: async def play\(self, attempt\) -> Played"),
        ("Greedy", "making it without arguments raised TypeError"),
        ("Missing", "has no Missing"),
    ],
)
def test_what_cannot_play_is_refused_by_its_field(own, name, message):
    with pytest.raises(ConfigError, match=message) as error:
        own(name)
    assert error.value.field == "tasks.countdown.player"


def test_an_unknown_player_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="did you mean turns"):
        find_player("countdown", "turn")


class Arrays:
    """Acts on arrays, without an engine."""

    async def play(self, attempt):
        await attempt.reset()
        attempt.note_action(Version(4), cost=1)
        outcome = await attempt.step("go")
        attempt.note_action(Version(5), cost=1)
        one = np.zeros((1, 2))
        payload = ArraySteps(
            observations={}, actions=one, logprobs=one, rewards=(outcome.reward,), versions=(4,)
        )
        return Played(payload=payload, stop="truncated", success=False, reward=outcome.reward)


def test_a_policy_that_asks_no_engine_says_what_acted_and_what_it_cost():
    record, births, _ = play(Arrays())
    assert (births, record.born, record.cost, record.payload.kind) == ([4], 4, 2, "array_steps")


class Scripted:
    """Does what a test says."""

    def __init__(self, act):
        self.act = act

    async def play(self, attempt):
        await attempt.reset()
        return await self.act(attempt)


def make_request(attempt):
    spec = attempt.spec
    return Request(
        session=spec.id,
        turn=0,
        domain=spec.task.domain,
        tokens=(1,),
        sampling=spec.sampling,
        stop=attempt.renderer.stop,
        seed=spec.seed,
    )


async def crash(_attempt):
    raise ValueError("no idea")


async def return_nothing(_attempt):
    return None


async def never_act(_attempt):
    return Played(payload=TokenTurns(turns=()), stop="truncated", success=False, reward=0.0)


async def time_out(_attempt):
    raise TimeoutError("a tool took long")


async def doubt(_attempt):
    raise AssertionError("not my move")


async def score(_attempt):
    raise ScoreError("the judge is down")


async def ask_nonsense(attempt):
    await attempt.complete("go")


async def ask_for_another(attempt):
    await attempt.complete(replace(make_request(attempt), session=TrajectoryId(2)))


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (crash, "countdown: the player raised ValueError: no idea (test_env_manager.py:"),
        (doubt, "countdown: the player raised AssertionError: not my move (test_env_manager.py:"),
        (score, "countdown: the player raised ScoreError: the judge is down"),
        (ask_nonsense, "countdown: complete() takes a Request; it was given 'go'"),
        (ask_for_another, "countdown: a request's session is the id of its attempt, 1, not 2"),
        (time_out, "countdown: the player raised TimeoutError: a tool took long"),
        (return_nothing, "countdown: the player must return a Played; it returned None"),
        (never_act, "countdown: the player ended the attempt without an action of the policy"),
    ],
)
def test_a_player_that_fails_fails_its_attempt_alone(act, said):
    failure, births, cost = play(Scripted(act))
    assert isinstance(failure, Failure)
    assert failure.kind == "player"
    assert failure.message.startswith(said)
    assert (births, cost) == ([], 0)


def test_an_error_of_our_own_is_not_the_players():
    async def act(_attempt):
        raise ModelError("the tokenizer is damaged")

    with pytest.raises(ModelError):
        play(Scripted(act))


class BrokenGenerator:
    """An engine that fails every request."""

    def __init__(self, error):
        self.error = error

    async def generate(self, request, on_cut=None):
        raise self.error

    def forget(self, session):
        pass


async def ask(attempt):
    await attempt.complete(make_request(attempt))


async def ask_and_complain(attempt):
    try:
        await ask(attempt)
    except Exception as error:
        raise RuntimeError("no answer") from error


async def ask_in_a_group(attempt):
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(ask(attempt))


async def ask_and_ignore(attempt):
    with suppress(Exception):
        await ask(attempt)
    return await never_act(attempt)


ASKING = [ask, ask_and_complain, ask_in_a_group, ask_and_ignore]
BROKEN = [
    ValueError("bad logits"),
    TimeoutError("no reply"),
    AssertionError("a bug"),
    EngineError("out of memory"),
]


@pytest.mark.parametrize("act", ASKING)
@pytest.mark.parametrize("error", BROKEN, ids=lambda error: type(error).__name__)
def test_an_engine_that_breaks_ends_the_run_whatever_the_player_makes_of_it(act, error):
    with pytest.raises(type(error)) as raised:
        play(Scripted(act), generator=BrokenGenerator(error))
    assert raised.value is error


@pytest.mark.parametrize("act", ASKING[:3])
def test_a_request_that_is_refused_is_not_the_players_error(act):
    failure, _, _ = play(Scripted(act), generator=BrokenGenerator(RequestError("too long")))
    assert failure == Failure(kind="engine", message="countdown: too long")


async def recover(attempt):
    with suppress(AttemptError):
        await ask(attempt)
    raise ValueError("my own")


def test_a_player_that_overcame_a_failure_is_blamed_for_its_next_one():
    failure, _, _ = play(Scripted(recover), generator=BrokenGenerator(RequestError("too long")))
    assert (failure.kind, "the player raised ValueError: my own" in failure.message) == (
        "player",
        True,
    )


async def ask_twice_at_once(attempt):
    await asyncio.gather(ask(attempt), ask(attempt))


def test_an_attempt_asks_one_thing_at_a_time():
    failure, _, _ = play(Scripted(ask_twice_at_once))
    assert failure == Failure(
        kind="player",
        message="countdown: an attempt asks one thing at a time: await complete() before the next "
        "one",
    )


class Quiz(Countdown):
    def reset(self, seed, task):
        return super().reset(seed, task)[0], {"payload": self.payload}


class Asking(Quiz):
    payload = {"answer": "42"}  # noqa: RUF012


class Wrong(Quiz):
    payload = "42"


def test_what_the_environment_tells_reward_functions_joins_the_task():
    record, _, _ = play(make=lambda _slot: Asking(), scoring="each")
    assert record.task == replace(make_task(1), payload={"answer": "42"})
    record, _, _ = play(make=lambda _slot: Asking())
    assert record.task == make_task(1)


def test_a_payload_that_is_no_dict_breaks_the_contract():
    failure, _, _ = play(make=lambda _slot: Wrong(), scoring="each")
    assert failure == Failure(
        kind="env_contract", message="countdown: info['payload'] must be a dict; it is '42'"
    )


class Holder:
    """A runtime that loads nothing: the policy is the weights."""

    def load(self, model, weights):
        return weights


class OneAct:
    """Acts once with the policy of its process."""

    async def play(self, attempt):
        await attempt.reset()
        resident = await attempt.policy()
        attempt.note_action(resident.version, cost=1)
        return Played(payload=None, stop="truncated", success=True, reward=resident.policy)


def play_with_policy(fetch, generator=None):
    policies = ResidentPolicies(
        Holder(),  # type: ignore[arg-type]
        model=Path("model"),
        start=Path("model"),
        version=Version(9),
        fetch=fetch,
    )
    return play(OneAct(), generator=generator, policies=policies)


def test_an_engine_is_asked_again_when_its_answers_weights_were_pruned(monkeypatch):
    monkeypatch.setattr("rollart.rollout.env_manager._PRUNED_PAUSE_S", 0.0)
    asked = list[Version]()

    def fetch(version):
        asked.append(version)
        if len(asked) < 3:
            raise PrunedError(f"weights version {version} is no longer there")
        return 0.5

    record, births, cost = play_with_policy(fetch)
    assert asked == [Version(0)] * 3
    assert (record.reward, births, cost) == (0.5, [Version(0)], 1)


def test_an_engine_that_never_gets_newer_weights_ends_the_run(monkeypatch):
    monkeypatch.setattr("rollart.rollout.env_manager._PRUNED_PAUSE_S", 0.0)
    monkeypatch.setattr("rollart.rollout.env_manager._MOST_PRUNED", 2)

    def fetch(version):
        raise PrunedError(f"weights version {version} is no longer there")

    with pytest.raises(PrunedError, match="version 0 is no longer there"):
        play_with_policy(fetch)
