"""The torch engine against the Hugging Face model it runs."""

import math
from dataclasses import replace

import pytest
import torch
from tiny_models import (
    KINDS,
    forced_logprobs,
    make_engine,
    make_model,
    make_request,
    make_tokens,
    weights_of,
)

from rollart.errors import ConfigError, ModelError
from rollart.inference.torch.engine import TorchEngine
from rollart.types import Completion, TrajectoryId, Version

TOLERANCE = 2e-5


def run(engine: TorchEngine) -> dict[tuple[int, int], Completion]:
    done: dict[tuple[int, int], Completion] = {}
    while engine.busy:
        for completion in engine.step():
            done[completion.session, completion.turn] = completion
    return done


def assert_is_models(model, prompt: tuple[int, ...], completion: Completion) -> None:
    expected = forced_logprobs(model, prompt, completion.tokens)
    assert completion.logprobs == pytest.approx(expected, abs=TOLERANCE)


def converse(engine: TorchEngine, model, prompts: dict[int, tuple[int, ...]], *, turns: int) -> int:
    """Run conversations that arrive one step apart; check every log-prob; return how many."""
    arriving = list(prompts)
    checked = 0
    while arriving or engine.busy:
        if arriving:
            session = arriving.pop(0)
            engine.add(make_request(session, prompts[session]))
        for completion in engine.step():
            session, turn = completion.session, completion.turn
            assert_is_models(model, prompts[session], completion)
            checked += len(completion.tokens)
            observation = make_tokens(1 + (session + turn) % 5, seed=session * 10 + turn)
            prompts[session] = prompts[session] + completion.tokens + observation
            if turn + 1 < turns:
                engine.add(make_request(session, prompts[session], turn=turn + 1))
            else:
                engine.forget(session)
    return checked


@pytest.mark.parametrize("kind", KINDS)
def test_logprobs_of_conversations_are_the_models(kind: str) -> None:
    model = make_model(kind)
    engine = make_engine(model)
    prompts = {session: make_tokens(20 + session, seed=session) for session in range(5)}
    checked = converse(engine, model, prompts, turns=3)
    assert engine.stats()["sampled_tokens"] == checked
    assert engine.stats()["reused_tokens"] > 100


@pytest.mark.parametrize(
    "options",
    [
        {"rows": 1, "cached_sessions": 0},
        {"rows": 2, "cached_sessions": 1},
        {"rows": 3, "cached_sessions": 9, "prefill_tokens": 7},
        {"rows": 16, "cached_sessions": 0, "prefill_tokens": 1},
    ],
)
def test_logprobs_hold_when_rows_are_evicted_and_prompts_are_cut(
    options: dict[str, object],
) -> None:
    model = make_model("qwen3")
    engine = make_engine(model, **options)
    prompts = {session: make_tokens(33, seed=session // 4) for session in range(12)}
    converse(engine, model, prompts, turns=3)
    assert engine.busy is False


def test_a_group_that_arrives_together_computes_its_prompt_once() -> None:
    model = make_model("qwen3")
    engine = make_engine(model)
    prompt = make_tokens(40, seed=1)
    for session in range(6):
        engine.add(make_request(session, prompt))
    for completion in run(engine).values():
        assert_is_models(model, prompt, completion)
    stats = engine.stats()
    assert (stats["prefill_tokens"], stats["reused_tokens"]) == (40 + 5, 5 * 39)


def test_a_late_member_copies_from_one_that_decodes_or_idles() -> None:
    model = make_model("llama")
    engine = make_engine(model)
    prompt = make_tokens(40, seed=1)
    other = prompt[:35] + make_tokens(9, seed=2)
    engine.add(make_request(0, prompt))
    engine.step()
    engine.add(make_request(1, prompt))
    done = run(engine)
    engine.add(make_request(2, other))
    done |= run(engine)
    for session, start in ((0, prompt), (1, prompt), (2, other)):
        assert_is_models(model, start, done[session, 0])
    stats = engine.stats()
    assert (stats["prefill_tokens"], stats["reused_tokens"]) == (40 + 1 + 9, 39 + 35)


def test_a_prompt_that_departs_from_what_its_row_holds_is_computed_from_there() -> None:
    model = make_model("qwen2")
    engine = make_engine(model)
    prompt = make_tokens(40, seed=1)
    engine.add(make_request(0, prompt))
    run(engine)
    changed = prompt[:25] + make_tokens(30, seed=2)
    engine.add(make_request(0, changed, turn=1))
    assert_is_models(model, changed, run(engine)[0, 1])
    engine.add(make_request(1, prompt))
    assert_is_models(model, prompt, run(engine)[1, 0])
    assert engine.stats()["reused_tokens"] == 25 + 25


def test_a_source_that_is_overwritten_in_the_same_step_is_copied_before() -> None:
    model = make_model("qwen3")
    engine = make_engine(model, rows=2, cached_sessions=0)
    old = make_tokens(50, seed=1)
    engine.add(make_request(0, old))
    run(engine)
    other = old[:16] + make_tokens(30, seed=3)
    engine.add(make_request(1, old + make_tokens(5, seed=2)))
    engine.add(make_request(0, other, turn=1))
    done = run(engine)
    assert_is_models(model, old + make_tokens(5, seed=2), done[1, 0])
    assert_is_models(model, other, done[0, 1])


def test_an_aborted_neighbour_leaves_the_others_as_they_were() -> None:
    model = make_model("qwen3")
    engine = make_engine(model)
    prompts = {session: make_tokens(10 + session, seed=session) for session in range(4)}
    for session, prompt in prompts.items():
        engine.add(replace(make_request(session, prompt), stop=()))
    engine.step()
    engine.step()
    aborted = engine.abort(TrajectoryId(1))
    assert aborted is not None
    done = run(engine)
    for session in (0, 2, 3):
        assert_is_models(model, prompts[session], done[session, 0])
    assert_is_models(model, prompts[1], aborted)
    longer = prompts[1] + aborted.tokens + make_tokens(3, seed=9)
    engine.add(make_request(1, longer, turn=1))
    assert_is_models(model, longer, run(engine)[1, 1])


@pytest.mark.parametrize("length", [10, 200])
def test_rows_scattered_over_the_cache_decode_as_well_as_neighbours(length: int) -> None:
    model = make_model("qwen3")
    engine = make_engine(model, rows=16)
    prompts = {session: make_tokens(length + session, seed=session) for session in range(14)}
    for session, prompt in prompts.items():
        engine.add(replace(make_request(session, prompt), stop=()))
    engine.step()
    for session in (0, 2, 4, 6, 8, 9, 11):
        engine.abort(TrajectoryId(session))
    done = run(engine)
    assert sorted(session for session, _ in done) == [1, 3, 5, 7, 10, 12, 13]
    for (session, _), completion in done.items():
        assert_is_models(model, prompts[session], completion)


def test_threads_that_share_long_operations_alone_compute_the_same() -> None:
    threads = torch.get_num_threads()
    model = make_model("qwen3")
    engine = make_engine(model, rows=16, threads=2)
    prompts = {session: make_tokens(220 + session, seed=session) for session in range(12)}
    try:
        converse(engine, model, prompts, turns=2)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("kind", ["qwen3", "qwen3-tied", "qwen2"])
def test_after_an_update_tokens_are_drawn_as_by_a_fresh_pass_of_the_new_model(kind: str) -> None:
    old, new = make_model(kind, seed=0), make_model(kind, seed=1)
    engine = make_engine(old, prefill_tokens=30)
    prompts = {session: make_tokens(20, seed=session // 2) for session in range(4)}
    for session, prompt in prompts.items():
        engine.add(replace(make_request(session, prompt), stop=()))
    for _ in range(4):
        engine.step()
    engine.update(Version(1), weights_of(new), keep_kv=False)
    for session, completion in ((key[0], value) for key, value in run(engine).items()):
        split = completion.versions.index(Version(1))
        before, after = completion.tokens[:split], completion.tokens[split:]
        assert split > 0 and len(completion.tokens) == 8
        prompt = prompts[session]
        expected = forced_logprobs(old, prompt, before)
        expected += forced_logprobs(new, prompt + before, after)
        assert completion.logprobs == pytest.approx(expected, abs=TOLERANCE)
    assert engine.stats()["recomputed_tokens"] > 40


def test_an_update_that_keeps_keys_and_values_recomputes_nothing() -> None:
    old, new = make_model("qwen3", seed=0), make_model("qwen3", seed=1)
    engine = make_engine(old)
    prompt = make_tokens(20, seed=1)
    engine.add(replace(make_request(0, prompt), stop=()))
    engine.step()
    engine.update(Version(1), weights_of(new), keep_kv=True)
    completion = run(engine)[0, 0]
    fresh = forced_logprobs(new, prompt, completion.tokens)
    assert engine.stats()["recomputed_tokens"] == 0
    assert completion.logprobs[2:] != pytest.approx(fresh[2:], abs=TOLERANCE)


def test_what_starts_after_an_update_is_computed_by_the_new_weights_alone() -> None:
    """Eight versions, every one with a running, an idle and a new session of the same prompt."""
    engine = make_engine(make_model("qwen3", seed=0))
    prompt = make_tokens(40, seed=1)
    for version in range(1, 9):
        start = 10 * version
        engine.add(make_request(start, prompt))
        run(engine)
        engine.add(replace(make_request(start + 1, prompt, max_tokens=12), stop=()))
        engine.step()
        model = make_model("qwen3", seed=version)
        engine.update(Version(version), weights_of(model), keep_kv=True)
        engine.add(make_request(start + 2, prompt))
        engine.add(make_request(start + 3, prompt + make_tokens(5, seed=version)))
        done = run(engine)
        assert_is_models(model, prompt, done[start + 2, 0])
        assert_is_models(model, prompt + make_tokens(5, seed=version), done[start + 3, 0])
        longer = prompt + done[start + 1, 0].tokens + make_tokens(3, seed=2)
        engine.add(make_request(start + 1, longer, turn=1))
        assert_is_models(model, longer, run(engine)[start + 1, 1])


def test_a_prompt_read_half_before_an_update_is_read_again() -> None:
    old, new = make_model("qwen3", seed=0), make_model("qwen3", seed=1)
    engine = make_engine(old, prefill_tokens=16)
    prompt = make_tokens(40, seed=1)
    engine.add(make_request(0, prompt))
    engine.step()
    engine.update(Version(1), weights_of(new), keep_kv=True)
    assert_is_models(new, prompt, run(engine)[0, 0])


def test_an_update_drops_idle_prefixes() -> None:
    old, new = make_model("qwen3", seed=0), make_model("qwen3", seed=1)
    engine = make_engine(old)
    prompt = make_tokens(40, seed=1)
    engine.add(make_request(0, prompt))
    first = run(engine)[0, 0]
    engine.update(Version(1), weights_of(new), keep_kv=False)
    longer = prompt + first.tokens + make_tokens(3, seed=2)
    engine.add(make_request(0, longer, turn=1))
    assert_is_models(new, longer, run(engine)[0, 1])
    assert engine.stats()["reused_tokens"] == 0


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3-tied"])
def test_greedy_is_what_generate_gives(kind: str) -> None:
    model = make_model(kind)
    engine = make_engine(model)
    prompts = [make_tokens(12 + 3 * session, seed=session) for session in range(3)]
    for session, prompt in enumerate(prompts):
        engine.add(replace(make_request(session, prompt, temperature=0.0, max_tokens=16), stop=()))
    done = run(engine)
    for session, prompt in enumerate(prompts):
        with torch.no_grad():
            ids = model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=16,
                do_sample=False,
            )
        assert done[session, 0].tokens == tuple(ids[0, len(prompt) :].tolist())
        assert done[session, 0].logprobs == (0.0,) * 16


def test_a_sequence_that_reaches_the_longest_length_ends() -> None:
    engine = make_engine(make_model("qwen3"), max_length=20)
    engine.add(replace(make_request(0, make_tokens(17, seed=0), max_tokens=50), stop=()))
    completion = run(engine)[0, 0]
    assert (len(completion.tokens), completion.finish) == (3, "length")


def test_a_prompt_without_room_for_a_token_is_refused() -> None:
    engine = make_engine(make_model("qwen3"), max_length=20)
    with pytest.raises(ConfigError, match=r"engine\.torch\.max_length = 20: session 4 sent 20 tok"):
        engine.add(make_request(4, make_tokens(20, seed=0)))
    with pytest.raises(ModelError, match="no tokens"):
        engine.add(make_request(4, ()))
    with pytest.raises(ModelError, match="outside the model's vocabulary of 61"):
        engine.add(make_request(4, (1, 61)))
    assert engine.busy is False


def test_a_session_forgotten_while_it_runs_leaves_its_row_when_it_ends() -> None:
    engine = make_engine(make_model("qwen3"))
    prompt = make_tokens(40, seed=1)
    engine.add(make_request(0, prompt))
    engine.step()
    engine.forget(TrajectoryId(0))
    run(engine)
    engine.add(make_request(0, prompt, turn=1))
    run(engine)
    assert engine.stats()["reused_tokens"] == 0


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_is_as_near_as_rounding_lets_it_be_to_the_models_own(kind: str) -> None:
    """Measured: 0.014 to 0.046 apart by root mean square, 0.13 at the most."""
    engine = make_engine(make_model(kind), dtype="bfloat16")
    rounded = make_model(kind).to(torch.bfloat16)
    prompts = {session: make_tokens(200, seed=session // 2) for session in range(8)}
    for session, prompt in prompts.items():
        engine.add(make_request(session, prompt))
    apart: list[float] = []
    for (session, _), completion in run(engine).items():
        expected = forced_logprobs(rounded, prompts[session], completion.tokens)
        pairs = zip(completion.logprobs, expected, strict=True)
        apart += [abs(ours - theirs) for ours, theirs in pairs]
    assert len(apart) > 40
    assert max(apart) < 0.2
    assert math.hypot(*apart) / math.sqrt(len(apart)) < 0.055


def test_weights_that_do_not_fit_are_refused_and_leave_the_engine_as_it_was() -> None:
    model = make_model("qwen3")
    engine, untouched = make_engine(model), make_engine(model)
    weights = weights_of(make_model("qwen3", seed=1))
    missing = {name: weights[name] for name in weights if name != "model.norm.weight"}
    with pytest.raises(ModelError, match=r"model\.norm\.weight is missing"):
        engine.update(Version(1), missing, keep_kv=False)
    with pytest.raises(ModelError, match=r"extra is not a parameter"):
        engine.update(Version(1), weights | {"extra": weights["lm_head.weight"]}, keep_kv=False)
    with pytest.raises(ModelError, match=r"model\.norm\.weight has shape \(61, 32\)"):
        engine.update(
            Version(1), weights | {"model.norm.weight": weights["lm_head.weight"]}, keep_kv=False
        )
    for each in (engine, untouched):
        each.add(make_request(0, make_tokens(9, seed=0)))
    assert engine.version == Version(0)
    assert run(engine) == run(untouched)


def test_rotary_frequencies_that_older_exports_hold_are_passed_over() -> None:
    model = make_model("llama")
    engine, plain = make_engine(model), make_engine(model)
    frequencies = {
        f"model.{place}rotary_emb.inv_freq": torch.ones(4)
        for place in ("", "layers.0.self_attn.", "layers.1.self_attn.")
    }
    engine.update(Version(1), weights_of(model) | frequencies, keep_kv=False)
    for each in (engine, plain):
        each.add(make_request(0, make_tokens(9, seed=0)))
    assert run(engine)[0, 0].tokens == run(plain)[0, 0].tokens


def test_positions_the_model_does_not_have_are_refused() -> None:
    with pytest.raises(ConfigError, match="the model has 512 positions"):
        make_engine(make_model("qwen3"), max_length=513)


@pytest.mark.parametrize("device", ["cuda:99", "gpu"])
def test_a_device_this_machine_does_not_have_is_named(device) -> None:
    with pytest.raises(
        ConfigError, match=rf"engine\.torch\.device = '{device}': this machine has no"
    ):
        make_engine(make_model("qwen3"), device=device)
