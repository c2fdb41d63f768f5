import threading
from dataclasses import replace

import pytest

from rollart.errors import ConfigError, EnvError
from rollart.rollout.players.token_turns import Episode, TurnPlayer
from rollart.seeds import derive_seed
from rollart.types import (
    AttemptSpec,
    Completion,
    EpisodeLimits,
    Played,
    Request,
    Sampling,
    StepOutcome,
    Task,
    TokenTurns,
    Turn,
)

END = 9
TASK = Task(id=5, env="lake", domain="game", seed=3)
SPEC = AttemptSpec(
    id=7,
    group=2,
    task=TASK,
    system="s",
    limits=EpisodeLimits(max_turns=3, max_tokens=40),
    sampling=Sampling(max_tokens=4),
    seed=11,
)


class Letters:
    """A renderer whose token ids are letters' codes."""

    stop = (END,)

    def start(self, messages):
        return tuple(ord(letter) for message in messages for letter in message.text)

    def extend(self, messages, *, closed):
        return (() if closed else (END,)) + self.start(messages)

    def decode(self, tokens):
        return "".join(chr(token) for token in tokens if token != END)


def episode(**changes):
    """Return a new episode."""
    return Episode(replace(SPEC, **changes), renderer=Letters())


def sampled(text, *, turn=0, version=0, closed=True):
    """Return a completion of these letters."""
    tokens = (*map(ord, text), END) if closed else tuple(map(ord, text))
    return Completion(
        session=7,
        turn=turn,
        tokens=tokens,
        logprobs=(-0.5,) * len(tokens),
        versions=(version,) * len(tokens),
        finish="stop" if closed else "length",
    )


def outcome(observation="o", *, reward=0.0, terminated=False, truncated=False, success=None):
    return StepOutcome(
        observation=observation,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        success=success,
    )


def codes(text):
    """Return token ids; `.` stands for the end of a turn."""
    return tuple(END if letter == "." else ord(letter) for letter in text)


def request(text, *, turn, max_tokens=4):
    return Request(
        session=7,
        turn=turn,
        domain="game",
        tokens=codes(text),
        sampling=Sampling(max_tokens=max_tokens),
        stop=(END,),
        seed=derive_seed(11, turn),
    )


def test_an_episode_asks_acts_and_observes_until_the_environment_ends_it():
    run = episode()
    assert run.start("a") == request("sa", turn=0)
    assert run.complete(sampled("x", version=4)) == "x"
    assert run.observe(outcome("b", reward=0.25)) == request("sax.b", turn=1)
    assert run.complete(sampled("y", turn=1, version=5)) == "y"
    assert run.observe(outcome("c", reward=0.5, terminated=True)) is None
    turns = (
        Turn(
            prompt_tokens=codes("sa"),
            tokens=codes("x."),
            logprobs=(-0.5, -0.5),
            versions=(4, 4),
            observation="a",
            action="x",
            reward=0.25,
        ),
        Turn(
            prompt_tokens=codes("b"),
            tokens=codes("y."),
            logprobs=(-0.5, -0.5),
            versions=(5, 5),
            observation="b",
            action="y",
            reward=0.5,
        ),
    )
    assert run.finish() == Played(
        payload=TokenTurns(turns=turns),
        stop="terminated",
        success=True,
        reward=0.75,
    )


def test_a_completion_cut_short_is_closed_by_the_prompt_that_follows():
    run = episode()
    run.start("a")
    run.complete(sampled("xyzw", closed=False))
    assert run.observe(outcome("b")) == request("saxyzw.b", turn=1)


def test_the_tokens_of_the_turns_in_order_are_the_last_request_and_its_answer():
    run = episode()
    run.start("a")
    run.complete(sampled("x"))
    last = run.observe(outcome("b"))
    run.complete(sampled("y", turn=1))
    run.observe(outcome(truncated=True))
    turns = run.finish().payload.turns
    assert sum((t.prompt_tokens + t.tokens for t in turns), ()) == last.tokens + codes("y.")


@pytest.mark.parametrize(
    ("changes", "stop", "success"),
    [
        ({"terminated": True, "reward": 1.0}, "terminated", True),
        ({"terminated": True, "reward": 0.0}, "terminated", False),
        ({"terminated": True, "reward": 0.0, "success": True}, "terminated", True),
        ({"truncated": True, "reward": 1.0}, "truncated", False),
        ({"truncated": True, "success": True}, "truncated", True),
        ({"reward": 1.0}, "max_turns", False),
        ({"observation": "b" * 50, "reward": 1.0}, "max_tokens", False),
    ],
)
def test_an_episode_ends_for_one_reason(changes, stop, success):
    turns = 1 if stop == "max_turns" else 3
    run = episode(limits=EpisodeLimits(max_turns=turns, max_tokens=40))
    run.start("a")
    run.complete(sampled("x"))
    assert run.observe(outcome(**changes)) is None
    assert (run.finish().stop, run.finish().success) == (stop, success)


def test_the_last_turn_may_sample_no_more_than_the_limit_leaves():
    run = episode(limits=EpisodeLimits(max_tokens=7))
    run.start("a")
    run.complete(sampled("x"))
    assert run.observe(outcome("b")) == request("sax.b", turn=1, max_tokens=2)


def test_a_first_observation_that_leaves_no_room_is_an_error_that_names_the_setting():
    with pytest.raises(EnvError) as error:
        episode(limits=EpisodeLimits(max_tokens=4)).start("aaaa")
    assert str(error.value) == (
        "the first observation makes a prompt of 5 tokens, which leaves no room within "
        "max_tokens = 4: raise tasks.lake.max_tokens or shorten the observation"
    )


class Watched(Letters):
    """A renderer that counts what it tokenizes, and in which threads."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.threads: set[int] = set()

    def start(self, messages):
        self.lengths.append(sum(len(each.text) for each in messages))
        self.threads.add(threading.get_ident())
        return tuple(map(ord, messages[-1].text[:3]))


def test_an_observation_that_cannot_fit_is_never_tokenized():
    renderer = Watched()
    huge = "x" * (40 * 128 + 1)
    with pytest.raises(EnvError, match=r"a prompt of 5121 characters, which leaves no room"):
        Episode(SPEC, renderer=renderer).start(huge)
    played = Episode(SPEC, renderer=renderer)
    played.start("go")
    played.complete(sampled("a"))
    outcome = StepOutcome(
        observation=huge, reward=1.0, terminated=False, truncated=False, success=None
    )
    assert played.observe(outcome) is None
    assert played.finish().stop == "max_tokens"
    assert renderer.lengths == [len("sgo")]


async def test_a_long_observation_is_tokenized_in_a_thread():
    renderer = Watched()
    spec = replace(SPEC, limits=EpisodeLimits(max_turns=2, max_tokens=1000))

    class Attempt:
        def __init__(self) -> None:
            self.spec, self.renderer = spec, renderer

        async def reset(self):
            return "x" * 50_000, {}

        async def complete(self, request):
            return sampled("a", turn=request.turn)

        async def parse(self, text):
            return text

        async def step(self, _action):
            return StepOutcome(
                observation="y" * 50_000,
                reward=0.0,
                terminated=False,
                truncated=False,
                success=None,
            )

    played = await TurnPlayer().play(Attempt())
    assert len(played.payload.turns) == 2
    assert renderer.lengths == [50_001, 50_000]
    assert threading.get_ident() not in renderer.threads


@pytest.mark.parametrize(("name", "value", "least"), [("max_turns", 0, 1), ("max_tokens", 1, 2)])
def test_limits_that_leave_no_turn_are_refused(name, value, least):
    with pytest.raises(ConfigError) as error:
        EpisodeLimits(**{name: value})
    assert str(error.value) == f"tasks.{name} = {value}: must be at least {least}"
