"""Whole steps of the trainer against the same steps written out in plain Python (`written_out`)."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from training_samples import make_trajectory, make_turn, random_groups
from written_out import WrittenOut

from rollart.training.algorithms.grpo import Grpo
from rollart.training.batch import encode
from rollart.training.options import TrainingOptions
from rollart.training.trainer import TorchTrainer
from rollart.training_ports import Algorithm

BASE = TrainingOptions(
    learning_rate=6e-4, eps=1e-3, weight_decay=0.1, max_grad_norm=0.5, micro_batch_tokens=48
)
RULES = Grpo(
    clip_low=0.02, clip_high=0.1, correction_cap=1.5, kl_coefficient=0.2, constant_tokens=7
)
UPDATES = 3
OF_ONE_TOKEN = ("ratio_max", "logprob_difference")
"""Figures in which the rounding of one float32 log-prob is not averaged away."""


def make_batch(checkpoint, *, version: int):
    """Turns with prompts between, a member that said nothing, and one that is its whole group.

    Behaviour log-probs are the first weights' up to noise: some weights are capped, some are not.
    """
    groups = random_groups(40 + version, groups=2, members=4, version=version)
    silent = make_trajectory(id=90, group=1, reward=2.5, turns=[make_turn([5, 6, 7], [], [], [])])
    alone = make_trajectory(
        id=91,
        group=2,
        reward=1.0,
        turns=[
            make_turn([8, 9], [10, 11], [-1.0, -2.0], [version] * 2),
            make_turn([12], [13], [-3.0], [version]),
        ],
    )
    arrays = encode([groups[0], [*groups[1], silent], [alone]], temperature=0.8)
    drawn, random = arrays["sampled"], np.random.default_rng(version)
    at_first = WrittenOut(checkpoint, BASE, RULES).logprobs(arrays)
    noisy = np.array(at_first) + random.normal(0, 0.5, len(at_first))
    arrays["logprobs"][drawn] = np.minimum(noisy, -1e-3).astype(np.float32)
    if version:
        arrays["versions"][np.flatnonzero(drawn)[::2]] = version - 1
    return arrays


def in_float64(checkpoint, options: TrainingOptions, rules: Algorithm) -> TorchTrainer:
    """A trainer whose model computes in float64: only its scores and loss are float32."""
    trainer = TorchTrainer(model=str(checkpoint), options=options, algorithm=rules)
    for model in (trainer._policy.model, trainer._policy.reference):
        if model is not None:
            model.double()
    return trainer


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant"])
@pytest.mark.parametrize(
    ("changed", "ruled"),
    [
        ({"epochs": UPDATES}, {}),
        ({"epochs": 2, "minibatches": 2}, {"entropy_coefficient": 0.05}),
        ({"epochs": UPDATES}, {"correction": "none", "kl_coefficient": 0.05}),
        ({"epochs": 1}, {}),
    ],
    ids=["decoupled", "minibatches-and-entropy", "plain-ppo", "one-update"],
)
def test_two_steps_are_those_written_out(checkpoint, aggregation, changed, ruled):
    options, rules = replace(BASE, **changed), replace(RULES, aggregation=aggregation, **ruled)
    trainer = in_float64(checkpoint, options, rules)
    expected = WrittenOut(checkpoint, options, rules)
    met: Counter[str] = Counter()
    for version in range(2):
        batch = make_batch(checkpoint, version=version)
        figures, seen = expected.step(batch)
        found = trainer.step(batch).metrics
        for name, value in figures.items():
            near = 5e-6 if name in OF_ONE_TOKEN else 1e-6
            assert (name, found[name]) == (name, pytest.approx(value, rel=near, abs=near))
        met += Counter(above=seen.clipped_above, below=seen.clipped_below, between=seen.between)
        is_decoupled = rules.correction == "decoupled"
        assert (0 < figures["correction_capped_fraction"] < 1) == is_decoupled
        assert figures["kl"] > 0 or (version == 0 and figures["updates"] == 1)
        assert max(seen.grad_norms) > options.max_grad_norm
    has_moved = options.epochs > 1
    assert all(met[name] > 0 for name in ("above", "below", "between")) == has_moved
    for name, value in expected.weights().items():
        weights = trainer._model.get_parameter(name).detach().numpy()
        np.testing.assert_allclose(weights, value, rtol=0, atol=1e-6)
