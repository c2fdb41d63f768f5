from dataclasses import replace

from rollart.rollout.engine_client import join, remainder
from rollart.seeds import derive_seed
from rollart.types import Completion, Request, Sampling

REQUEST = Request(
    session=1,
    turn=2,
    domain="games",
    tokens=(1, 2),
    sampling=Sampling(max_tokens=5),
    stop=(0,),
    seed=9,
)
PARTIAL = Completion(
    session=1, turn=2, tokens=(3, 4), logprobs=(-1.0, -2.0), versions=(0, 0), finish="abort"
)


def test_what_was_sampled_becomes_prompt_and_the_rest_is_drawn_anew():
    assert remainder(REQUEST, PARTIAL) == replace(
        REQUEST,
        tokens=(1, 2, 3, 4),
        sampling=Sampling(max_tokens=3),
        seed=derive_seed(9, 2),
    )


def test_a_request_of_which_nothing_was_sampled_is_asked_again():
    nothing = replace(PARTIAL, tokens=(), logprobs=(), versions=())
    assert remainder(REQUEST, nothing) == REQUEST


def test_the_parts_of_a_turn_keep_their_log_probs_and_versions():
    rest = Completion(
        session=1, turn=2, tokens=(0,), logprobs=(-3.0,), versions=(4,), finish="stop"
    )
    assert join(PARTIAL, rest) == Completion(
        session=1,
        turn=2,
        tokens=(3, 4, 0),
        logprobs=(-1.0, -2.0, -3.0),
        versions=(0, 0, 4),
        finish="stop",
    )
