"""The contract of the port `Algorithm`, over every algorithm that is shipped."""

import dataclasses
import inspect

import numpy as np
import pytest
import torch
from training_samples import make_trajectory, make_turn, random_groups

from rollart.config.writer import field_docs
from rollart.plugins import BUILT_IN, find, name_of
from rollart.training.batch import Batch, decode, encode
from rollart.training.losses import compute_advantages
from rollart.training.options import TrainingOptions, read_algorithm, trainer_arguments
from rollart.training.trainer import TorchTrainer
from rollart.training_ports import Algorithm, Trainer
from rollart.types import LossTerms, TokenBatch

NAMES = tuple(BUILT_IN["algorithm"])


@pytest.fixture(params=NAMES)
def kind(request):
    return find("algorithm", request.param, field="algorithm.type")


@pytest.fixture(
    params=[{}, {"kl_coefficient": 0.1, "entropy_coefficient": 0.1}], ids=["plain", "all terms"]
)
def algorithm(request, kind) -> Algorithm:
    return kind(**request.param)


def terms_of(algorithm: Algorithm, count: int) -> LossTerms:
    draw = torch.Generator().manual_seed(count)

    def some() -> torch.Tensor:
        return -torch.rand(count, generator=draw)

    return LossTerms(
        logprobs=some().requires_grad_(),
        proximal=some(),
        behaviour=some(),
        reference=some() if algorithm.needs.reference else None,
        advantages=some() + 0.5,
        entropies=some().abs().requires_grad_(algorithm.needs.entropy),
        owners=torch.arange(count) // 3,
        turns=torch.arange(count) // 2,
        weights=torch.ones(count),
        columns=dict.fromkeys(column_names(algorithm), (torch.arange(count) % 2).float()),
    )


def view_of(algorithm: Algorithm, batch: Batch) -> TokenBatch:
    """A batch as the trainer shows it: with log-probs only where they are asked for."""
    scores = -np.ones(len(batch.tokens), np.float32)
    return batch.view(
        version=0,
        proximal=scores if algorithm.needs.scores else None,
        reference=scores if algorithm.needs.scores and algorithm.needs.reference else None,
    )


def column_names(algorithm: Algorithm) -> tuple[str, ...]:
    _, extra = compute_advantages(algorithm, view_of(algorithm, decode(encode(random_groups(4)))))
    return tuple(extra)


def test_it_is_a_frozen_dataclass_with_a_docstring_for_every_field(kind):
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen
    assert isinstance(kind(), Algorithm)
    assert "Example:" in inspect.getdoc(kind)
    assert all(field_docs(kind).values())


def test_it_travels_as_plain_values(algorithm):
    described = trainer_arguments(TrainingOptions(), algorithm)["algorithm"]
    assert described["type"] == name_of("algorithm", type(algorithm))
    assert read_algorithm(described) == algorithm


def test_every_token_gets_a_finite_advantage_and_the_batch_is_left_alone(algorithm):
    alone = [make_trajectory(id=9, group=9, reward=2.0, turns=[make_turn([1], [2], [-1.0], [0])])]
    for groups in ([], [alone], random_groups(4), [*random_groups(4), alone]):
        arrays = encode(groups)
        before = {name: array.copy() for name, array in arrays.items()}
        for array in arrays.values():
            array.flags.writeable = False
        batch = decode(arrays)
        found, extra = compute_advantages(algorithm, view_of(algorithm, batch))
        assert found.shape == batch.tokens.shape
        assert np.isfinite(found).all()
        assert all(np.isfinite(values).all() for values in extra.values())
        for name, array in before.items():
            np.testing.assert_array_equal(arrays[name], array)


def test_weights_are_finite_and_one_for_each_sequence(algorithm):
    for counts in ([], [0], [3, 0, 5]):
        given = np.array(counts, np.int64)
        found = algorithm.token_weights(given, np.zeros_like(given))
        assert found.shape == given.shape
        assert np.isfinite(found).all()


def test_every_token_gets_a_loss_with_a_gradient_and_measures_by_name(algorithm):
    terms = terms_of(algorithm, 12)
    result = algorithm.loss(terms)
    result.losses.sum().backward()
    assert result.losses.shape == (12,)
    assert torch.isfinite(terms.logprobs.grad).all()
    assert terms.logprobs.grad.any()
    measures = {**result.parts, **result.means, **result.maxima}
    assert {tuple(value.shape) for value in measures.values()} == {(12,)}
    again = algorithm.loss(terms_of(algorithm, 5))
    assert {**again.parts, **again.means, **again.maxima}.keys() == measures.keys()


def test_the_torch_trainer_has_the_methods_of_the_port():
    wanted = {name: each for name, each in vars(Trainer).items() if inspect.isfunction(each)}
    public = {name: each for name, each in wanted.items() if not name.startswith("_")}
    assert {name: inspect.signature(each) for name, each in public.items()} == {
        name: inspect.signature(getattr(TorchTrainer, name)) for name in public
    }
