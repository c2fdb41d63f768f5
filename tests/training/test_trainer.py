import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from training_samples import make_trajectory, make_turn, random_groups, trainer_values
from transformers import AutoModelForCausalLM

from rollart.errors import ConfigError, InvariantError
from rollart.inference.torch.sampler import sample
from rollart.training.algorithms.grpo import Grpo
from rollart.training.algorithms.reinforce import Reinforce
from rollart.training.batch import Batch, decode, encode
from rollart.training.options import TrainingOptions
from rollart.training.trainer import TorchTrainer
from rollart.weights.store import MemoryStore


def make_trainer(checkpoint, *, store=None, version=0, **options) -> TorchTrainer:
    values = trainer_values({"learning_rate": 1e-2, **options})
    return TorchTrainer(model=str(checkpoint), **values, store=store, version=version)


def weights_of(trainer: TorchTrainer) -> dict[str, np.ndarray]:
    store = MemoryStore()
    trainer._store, trainer._has_store = store, True
    return dict(store.fetch(trainer.publish()))


def plain_logprobs(checkpoint, batch: Batch) -> tuple[list[list[float]], list[list[float]]]:
    """Log-probs and entropies of each trajectory's sampled tokens by plain forwards."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    logprobs, entropies = [], []
    for start, end in zip(batch.offsets[:-1], batch.offsets[1:], strict=True):
        ids = torch.from_numpy(batch.tokens[start:end].astype(np.int64))
        with torch.no_grad():
            rows = model(input_ids=ids[None]).logits[0].double().log_softmax(-1)
        at = np.flatnonzero(batch.sampled[start:end])
        logprobs.append([float(rows[i - 1, ids[i]]) for i in at])
        entropies.append([float(-(rows[i - 1].exp() * rows[i - 1]).sum()) for i in at])
    return logprobs, entropies


def expected_loss(checkpoint, batch: Batch, options: Grpo) -> float:
    """The whole loss of a first step, written out: ratio 1 (decoupled) or to the behaviour."""
    advantages = options.advantages(batch.view(version=0))[batch.offsets[:-1]]
    logprobs, entropies = plain_logprobs(checkpoint, batch)
    sequences = len(logprobs)
    tokens = sum(map(len, logprobs))
    total = 0.0
    for index, row in enumerate(logprobs):
        start, end = batch.offsets[index : index + 2]
        behaviour = batch.logprobs[start:end][batch.sampled[start:end]].tolist()
        share = {
            "token_mean": 1 / tokens,
            "sequence_mean": 1 / (sequences * len(row)),
            "constant": 1 / (sequences * options.constant_tokens),
        }[options.aggregation]
        advantage = advantages[index]
        for logp, old, entropy in zip(row, behaviour, entropies[index], strict=True):
            ratio = math.exp(logp - old)
            if options.correction == "decoupled":
                policy = -min(ratio, options.correction_cap) * advantage
            else:
                clipped = min(max(ratio, 1 - options.clip_low), 1 + options.clip_high)
                policy = -min(ratio * advantage, clipped * advantage)
            total += share * (policy - options.entropy_coefficient * entropy)
    return total


@pytest.mark.parametrize("correction", ["decoupled", "none"])
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant"])
@pytest.mark.parametrize("entropy", [0.0, 0.1])
def test_the_loss_of_a_step_is_the_written_out_objective(
    checkpoint, correction, aggregation, entropy
):
    algorithm = Grpo(correction=correction, aggregation=aggregation, entropy_coefficient=entropy)
    options = TrainingOptions(micro_batch_tokens=64)
    groups = random_groups(5)
    groups[1] = [replace(member, reward=0.3) for member in groups[1]]
    arrays = encode(groups)
    trainer = TorchTrainer(model=str(checkpoint), options=options, algorithm=algorithm)
    report = trainer.step(arrays)
    expected = expected_loss(checkpoint, decode(arrays), algorithm)
    assert report.metrics["loss"] == pytest.approx(expected, abs=1e-5)
    assert report.metrics["kl"] == 0.0


def test_leaving_out_zero_advantages_changes_neither_loss_nor_weights(checkpoint):
    groups = random_groups(5)
    groups[1] = [replace(member, reward=0.3) for member in groups[1]]
    results = []
    for skip in (True, False):
        trainer = make_trainer(checkpoint, skip_zero_advantage=skip)
        metrics = trainer.step(encode(groups)).metrics
        results.append((metrics, weights_of(trainer)))
    (skipping, light), (whole, heavy) = results
    assert skipping["trained_tokens"] < whole["trained_tokens"] == whole["sampled_tokens"]
    assert skipping["loss"] == pytest.approx(whole["loss"], abs=1e-6)
    assert skipping["grad_norm"] == pytest.approx(whole["grad_norm"], rel=1e-5)
    for name, value in light.items():
        np.testing.assert_allclose(value, heavy[name], rtol=0, atol=1e-3)


def test_micro_batches_only_split_a_sum(checkpoint):
    arrays = encode(random_groups(6))
    metrics = [
        make_trainer(checkpoint, micro_batch_tokens=size, row_tokens=row).step(arrays).metrics
        for size, row in ((30, 0), (10_000, 0), (10_000, 200), (60, 1))
    ]
    for other in metrics[1:]:
        assert other["loss"] == pytest.approx(metrics[0]["loss"], abs=1e-6)
        assert other["grad_norm"] == pytest.approx(metrics[0]["grad_norm"], rel=1e-5)


def test_a_step_makes_good_trajectories_likelier(checkpoint):
    groups = random_groups(7, groups=1)
    members = [replace(m, reward=float(i == 0)) for i, m in enumerate(groups[0])]
    arrays = encode([members])
    trainer = make_trainer(checkpoint, learning_rate=1e-3, correction_cap=100.0)
    before = weights_of(trainer)
    for _ in range(5):
        trainer.step(arrays)
    after = weights_of(trainer)

    def favour(weights) -> float:
        model = AutoModelForCausalLM.from_pretrained(checkpoint)
        model.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in weights.items()})
        total = 0.0
        batch = decode(arrays)
        for index, (start, end) in enumerate(
            zip(batch.offsets[:-1], batch.offsets[1:], strict=True)
        ):
            ids = torch.from_numpy(batch.tokens[start:end].astype(np.int64))
            rows = model(input_ids=ids[None]).logits[0].log_softmax(-1).detach()
            at = np.flatnonzero(batch.sampled[start:end])
            total += (1 if index == 0 else -1 / 3) * sum(float(rows[i - 1, ids[i]]) for i in at)
        return total

    assert favour(after) > favour(before)


def test_the_divergence_from_the_start_is_reported_once_weights_moved(checkpoint):
    trainer = make_trainer(checkpoint, kl_coefficient=0.1)
    reports = [trainer.step(encode(random_groups(seed))).metrics for seed in (1, 2)]
    assert reports[0]["kl"] == 0.0
    assert reports[1]["kl"] > 0.0
    assert reports[1]["loss"] == pytest.approx(
        reports[1]["policy_loss"] + 0.1 * reports[1]["kl"], abs=1e-6
    )


def test_a_step_in_bfloat16_is_near_that_in_float32(checkpoint):
    batch = encode(random_groups(9))
    rows, _ = plain_logprobs(checkpoint, decode(batch))
    batch["logprobs"][batch["sampled"]] = [value for row in rows for value in row]
    reports, moved = {}, {}
    for dtype in ("float32", "bfloat16"):
        trainer = make_trainer(checkpoint, dtype=dtype, kl_coefficient=0.1, epochs=2)
        assert {str(each.dtype) for each in trainer._model.parameters()} == {f"torch.{dtype}"}
        before = weights_of(trainer)
        reports[dtype] = trainer.step(batch).metrics
        after = weights_of(trainer)
        assert {each.dtype for each in after.values()} == {np.dtype(np.float32)}
        moved[dtype] = sum(float(np.abs(after[name] - before[name]).sum()) for name in before)
    exact, rough = reports["float32"], reports["bfloat16"]
    assert (rough["updates"], rough["skipped"]) == (2.0, 0.0)
    assert 0 < rough["logprob_difference"] < 0.2
    assert exact["logprob_difference"] < 1e-5
    for name in ("loss", "policy_loss", "kl", "entropy", "correction_mean"):
        assert rough[name] == pytest.approx(exact[name], rel=0.08, abs=4e-3)
    assert moved["bfloat16"] == pytest.approx(moved["float32"], rel=0.05)


@pytest.mark.parametrize("correction", ["decoupled", "none"])
def test_truncated_sampling_is_trained_as_it_was_sampled(checkpoint, correction):
    """At top-p 0.5 all ratios to the whole distribution would be below 1 - clip_low."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    members = []
    for index in range(8):
        prompt = [2 + index, 3, 4]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([prompt])).logits[0, -1:]
        filters = (0.9, 0.5, 0, 0.0)
        (token,), (logprob,) = sample(logits, [filters], [index / 8])
        turns = [make_turn(prompt, [token], [logprob], [0])]
        members.append(make_trajectory(id=index, group=0, reward=float(index % 2), turns=turns))
    trainer = make_trainer(checkpoint, correction=correction)
    found = trainer.step(encode([members], temperature=0.9, top_p=0.5)).metrics
    assert found["logprob_difference"] < 1e-5
    assert found["ratio_max"] == pytest.approx(1, abs=1e-5)
    assert (found["clip_fraction"], found["updates"]) == (0.0, 1.0)
    assert found["correction_mean"] == pytest.approx(1, abs=1e-5)
    whole = make_trainer(checkpoint, correction=correction).step(encode([members], temperature=0.9))
    assert whole.metrics["logprob_difference"] > 0.3


def test_attempts_cut_short_are_masked_if_asked_for(checkpoint):
    groups = random_groups(8)
    groups = [
        [replace(each, stop="max_tokens") for each in group[:1]] + group[1:] for group in groups
    ]
    kept = [group[1:] for group in groups]
    masking = make_trainer(checkpoint, mask_truncated_completions=True)
    without, plain = make_trainer(checkpoint), make_trainer(checkpoint)
    reports = [
        masking.step(encode(groups)).metrics,
        without.step(encode(kept)).metrics,
        plain.step(encode(groups)).metrics,
    ]
    assert [each["masked_trajectories"] for each in reports] == [len(groups), 0.0, 0.0]
    assert reports[0]["reward_mean"] == reports[2]["reward_mean"]
    for name in ("loss", "grad_norm", "trained_tokens", "advantage_std"):
        assert reports[0][name] == reports[1][name] != reports[2][name]
    left, right = weights_of(masking), weights_of(without)
    assert all(np.array_equal(left[name], right[name]) for name in left)
    nothing = [[replace(each, stop="max_turns") for each in group] for group in groups]
    found = masking.step(encode(nothing)).metrics
    assert (found["no_signal"], found["updates"], found["advantage_std"]) == (1.0, 0.0, 0.0)
    assert all(math.isfinite(value) for value in found.values())


def test_the_learning_rate_falls_as_the_schedule_says(checkpoint):
    schedule = {"lr_scheduler_type": "linear", "decay_steps": 4}
    trainer = make_trainer(checkpoint, learning_rate=0.01, **schedule)
    found = [trainer.step(encode(random_groups(seed))).metrics for seed in range(5)]
    rates = [each["learning_rate"] for each in found]
    assert rates == pytest.approx([0.01, 0.0075, 0.005, 0.0025, 0.0])


def test_several_updates_keep_the_first_weights_as_the_proximal_policy(checkpoint):
    trainer = make_trainer(checkpoint, epochs=2, minibatches=3, skip_zero_advantage=False)
    report = trainer.step(encode(random_groups(8)))
    assert report.version == 1
    assert report.metrics["updates"] == 6.0
    assert report.metrics["trained_tokens"] == 2 * report.metrics["sampled_tokens"]
    assert report.metrics["ratio_max"] > 1.01
    assert report.metrics["clip_fraction"] > 0


def test_metrics_describe_the_batch_and_its_age(checkpoint):
    members = [
        make_trajectory(
            id=index,
            group=0,
            reward=float(index),
            success=index == 1,
            turns=[make_turn([1, 2], [3, 4], [-1.0, -1.0], versions)],
        )
        for index, versions in enumerate(([4, 5], [2, 5]))
    ]
    report = make_trainer(checkpoint, version=5, warmup_steps=4).step(encode([members]))
    assert report.version == 6
    found = {
        name: report.metrics[name]
        for name in (
            "tokens",
            "sampled_tokens",
            "trained_tokens",
            "trajectories",
            "groups",
            "reward_mean",
            "success_mean",
            "staleness_mean",
            "staleness_max",
            "learning_rate",
            "ratio_max",
            "no_signal",
            "skipped",
            "updates",
        )
    }
    assert found == {
        "tokens": 8.0,
        "sampled_tokens": 4.0,
        "trained_tokens": 4.0,
        "trajectories": 2.0,
        "groups": 1.0,
        "reward_mean": 0.5,
        "success_mean": 0.5,
        "staleness_mean": 1.0,
        "staleness_max": 3.0,
        "learning_rate": 0.0025,
        "ratio_max": 1.0,
        "no_signal": 0.0,
        "skipped": 0.0,
        "updates": 1.0,
    }
    assert report.metrics["advantage_std"] == pytest.approx(1.0, abs=1e-5)
    assert all(type(v) is float and math.isfinite(v) for v in report.metrics.values())


def test_the_trainer_s_log_probs_of_fresh_tokens_are_compared_with_the_behaviour_s(checkpoint):
    batch = encode(random_groups(9))
    rows, _ = plain_logprobs(checkpoint, decode(batch))
    flat = np.array([value for row in rows for value in row], np.float32)
    batch["logprobs"][batch["sampled"]] = flat
    last = np.flatnonzero(batch["sampled"])[-1]
    batch["logprobs"][last] -= 3
    batch["versions"][last] = 1
    metrics = make_trainer(checkpoint).step(batch).metrics
    assert metrics["logprob_difference"] < 1e-5
    batch["versions"][last] = 0
    metrics = make_trainer(checkpoint).step(batch).metrics
    assert metrics["logprob_difference"] == pytest.approx(3, abs=1e-5)


@pytest.mark.parametrize("minibatches", [1, 3])
def test_a_batch_without_signal_counts_as_a_step_and_moves_nothing(checkpoint, minibatches):
    groups = [[replace(m, reward=1.0) for m in group] for group in random_groups(10)]
    trainer = make_trainer(checkpoint, weight_decay=0.1, minibatches=minibatches)
    before = weights_of(trainer)
    report = trainer.step(encode(groups))
    assert (report.version, report.metrics["no_signal"], report.metrics["loss"]) == (1, 1.0, 0.0)
    assert report.metrics["entropy"] > 0
    after = weights_of(trainer)
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name])


def test_arrays_that_may_only_be_read_are_enough(checkpoint):
    batch = encode(random_groups(12))
    for array in batch.values():
        array.flags.writeable = False
    assert make_trainer(checkpoint).step(batch).metrics["updates"] == 1.0


def test_tokens_of_another_vocabulary_are_refused(checkpoint):
    batch = encode(random_groups(12))
    batch["tokens"][3] = 40
    with pytest.raises(InvariantError, match=r"holds token 40, the model .* knows 40: it was"):
        make_trainer(checkpoint).step(batch)


def test_an_empty_batch_counts_as_a_step(checkpoint):
    report = make_trainer(checkpoint).step(encode([]))
    assert (report.version, report.metrics["no_signal"], report.metrics["tokens"]) == (1, 1.0, 0.0)
    assert all(math.isfinite(value) for value in report.metrics.values())


@pytest.mark.parametrize("damage", ["loss", "gradient"])
def test_a_non_finite_update_is_skipped_and_weights_stay_as_they_were(checkpoint, damage):
    trainer = make_trainer(checkpoint)
    batch = encode(random_groups(11))
    if damage == "loss":
        batch["rewards"][:] = np.linspace(-3e38, 3e38, len(batch["rewards"]))
        trainer._algorithm = Reinforce()
    else:
        embedding = trainer._model.get_input_embeddings().weight
        embedding.register_hook(lambda gradient: gradient * math.nan)
    before = weights_of(trainer)
    report = trainer.step(batch)
    assert (report.version, report.metrics["skipped"], report.metrics["updates"]) == (1, 1.0, 0.0)
    assert all(math.isfinite(value) for value in report.metrics.values())
    after = weights_of(trainer)
    for name, value in before.items():
        np.testing.assert_array_equal(value, after[name])
    assert trainer._optimizer.state == {}


def test_published_weights_are_the_model_s_by_name(checkpoint):
    store = MemoryStore()
    trainer = make_trainer(checkpoint, store=store, version=3)
    assert trainer.publish() == 3
    expected = AutoModelForCausalLM.from_pretrained(checkpoint).state_dict()
    found = store.fetch(3)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value.numpy())


def test_a_store_is_opened_from_plain_values(checkpoint, tmp_path):
    store = {"kind": "shared_memory", "directory": str(tmp_path), "keep": 2}
    trainer = make_trainer(checkpoint, store=store)
    assert trainer.publish() == 0
    assert trainer._store is not None
    assert trainer._store.latest() == 0
    trainer._store.close()


def test_publishing_without_a_store_is_a_broken_invariant(checkpoint):
    with pytest.raises(InvariantError, match="without a weight store"):
        make_trainer(checkpoint).publish()


def test_an_unknown_option_is_refused_by_name(checkpoint):
    with pytest.raises(ConfigError, match=r"training\.learning_rte = 1"):
        make_trainer(checkpoint, learning_rte=1)
