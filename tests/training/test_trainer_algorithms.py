"""Algorithms of one's own: what the trainer gives them, and what it makes of what they give."""

import json
import math

import numpy as np
import pytest
import torch
from training_samples import make_trajectory, make_turn, random_groups
from transformers import AutoModelForCausalLM

from rollart.errors import InvariantError
from rollart.plugins import BUILT_IN
from rollart.training.batch import Batch, decode, encode
from rollart.training.options import read_algorithm, trainer_arguments
from rollart.training.trainer import TorchTrainer

OWN = '''
from dataclasses import dataclass

import numpy as np
import torch

from rollart.types import AlgorithmNeeds, TokenLosses


@dataclass(frozen=True, kw_only=True)
class Toy:
    """Reinforces each attempt by its reward, scaled."""

    scale: float = 1.0

    @property
    def needs(self):
        return AlgorithmNeeds()

    def advantages(self, batch):
        return self.scale * batch.rewards[batch.owners]

    def token_weights(self, counts, groups):
        return np.full(len(counts), 1 / max(counts.sum(), 1))

    def loss(self, terms):
        losses = -terms.advantages * terms.logprobs
        return TokenLosses(losses=losses, means={"surprise": -terms.logprobs.detach()})


@dataclass(frozen=True, kw_only=True)
class TurnReturns(Toy):
    """Gives each turn the rewards from it on, discounted, less the mean of the group's turns."""

    discount: float = 0.9

    def advantages(self, batch):
        returns = batch.turn_rewards.copy()
        for turn in range(len(returns) - 2, -1, -1):
            if batch.turn_owners[turn] == batch.turn_owners[turn + 1]:
                returns[turn] += self.discount * returns[turn + 1]
        groups = batch.groups[batch.turn_owners]
        means = np.bincount(groups, weights=returns) / np.bincount(groups)
        return (returns - means[groups])[batch.turns]


@dataclass(frozen=True, kw_only=True)
class Sequences(Toy):
    """Weighs each attempt's ratio as a whole: the mean over its tokens, as GSPO does."""

    def loss(self, terms):
        size = int(terms.owners.max()) + 1
        counts = torch.bincount(terms.owners, minlength=size)
        sums = torch.zeros(size).index_add(0, terms.owners, terms.logprobs - terms.behaviour)
        ratios = (sums / counts.clamp(min=1)).exp()[terms.owners]
        return TokenLosses(losses=-ratios * terms.advantages, maxima={"ratio_max": ratios})


@dataclass(frozen=True, kw_only=True)
class Surprising(Toy):
    """Trains only the least likely tokens of the batch, marked before it is cut up."""

    share: float = 0.25

    @property
    def needs(self):
        return AlgorithmNeeds(scores=True, reference=True)

    def columns(self, batch, advantages):
        assert batch.reference is not None
        bound = np.quantile(batch.proximal[batch.sampled], self.share)
        return {"is_rare": (batch.proximal <= bound).astype(np.float64)}

    def loss(self, terms):
        rare = terms.columns["is_rare"]
        assert terms.reference is not None
        gap = (terms.proximal - terms.reference).abs()
        losses = -rare * terms.advantages * terms.logprobs
        return TokenLosses(losses=losses, means={"rare": rare}, maxima={"gap": gap})


@dataclass(frozen=True, kw_only=True)
class PerTrajectory(Toy):
    def advantages(self, batch):
        return batch.rewards
'''


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "own_algorithms.py"
    path.write_text(OWN)
    return path


def make(checkpoint, own, name: str, **values) -> TorchTrainer:
    """A trainer made of JSON values alone, as one in a process of its own is."""
    algorithm = {"type": f"{own}:{name}", **values}
    options = {"learning_rate": 1e-2, "max_grad_norm": 0.0, "micro_batch_tokens": 64}
    return TorchTrainer(model=str(checkpoint), options=options, algorithm=algorithm)


def episodes() -> list:
    """Two groups of attempts of one to three turns, each turn with a reward of its own."""
    random = np.random.default_rng(3)
    groups = []
    for group in range(2):
        members = []
        for member in range(3):
            turns = [
                make_turn(
                    random.integers(0, 40, 3).tolist(),
                    random.integers(0, 40, 2 + turn).tolist(),
                    [-1.0] * (2 + turn),
                    [0] * (2 + turn),
                    reward=float(random.integers(0, 4)),
                )
                for turn in range(1 + (member + group) % 3)
            ]
            members.append(
                make_trajectory(id=3 * group + member, group=group, reward=0, turns=turns)
            )
        groups.append(members)
    return groups


def turn_advantages(groups, discount: float) -> list[float]:
    """Each token's advantage, written out turn by turn."""
    found = []
    for group in groups:
        returns = []
        for member in group:
            rewards = [turn.reward for turn in member.turns]
            returns.append(
                [
                    sum(discount**k * reward for k, reward in enumerate(rewards[start:]))
                    for start in range(len(rewards))
                ]
            )
        flat = [each for own_returns in returns for each in own_returns]
        mean = sum(flat) / len(flat)
        for member, own_returns in zip(group, returns, strict=True):
            for turn, value in zip(member.turns, own_returns, strict=True):
                found += [value - mean] * (len(turn.prompt_tokens) + len(turn.tokens))
    return found


def plain_gradient(checkpoint, batch: Batch, advantages: list[float]) -> dict[str, np.ndarray]:
    """The gradient of -mean(A·logp) with the logits' part written out, one token at a time."""
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float64).eval()
    count = int(batch.sampled.sum())
    for start, end in zip(batch.offsets[:-1].tolist(), batch.offsets[1:].tolist(), strict=True):
        ids = torch.from_numpy(batch.tokens[start:end].astype(np.int64))
        logits = model(input_ids=ids[None]).logits[0]
        slopes = [[0.0] * logits.shape[1] for _ in range(len(ids))]
        for place in range(start, end):
            if batch.sampled[place]:
                row = logits[place - start - 1].tolist()
                total = sum(math.exp(each) for each in row)
                slopes[place - start - 1] = [
                    -advantages[place]
                    / count
                    * ((index == int(ids[place - start])) - math.exp(each) / total)
                    for index, each in enumerate(row)
                ]
        logits.backward(torch.tensor(slopes, dtype=torch.float64))
    return {name: value.grad.numpy() for name, value in model.named_parameters()}


def gradient_of(trainer: TorchTrainer, arrays) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """The gradient of one step in float64, seen when the optimizer is to apply it."""
    trainer._model.double()
    seen: dict[str, np.ndarray] = {}

    def keep(*_) -> None:
        for name, value in trainer._model.named_parameters():
            seen[name] = value.grad.numpy().copy()

    trainer._optimizer.register_step_pre_hook(keep)
    return seen, dict(trainer.step(arrays).metrics)


def test_a_toy_algorithm_of_a_temporary_module_trains_a_step(checkpoint, own):
    trainer = make(checkpoint, own, "Toy", scale=2.0)
    batch = encode(random_groups(5))
    before = {name: value.detach().clone() for name, value in trainer._model.named_parameters()}
    report = trainer.step(batch)
    assert (report.version, report.metrics["updates"]) == (1, 1.0)
    assert report.metrics["surprise"] > 0
    assert report.metrics["clip_fraction"] == 0.0
    assert any(
        not torch.equal(value, before[name]) for name, value in trainer._model.named_parameters()
    )
    arguments = trainer_arguments(trainer._options, trainer._algorithm)
    assert read_algorithm(json.loads(json.dumps(arguments["algorithm"]))) == trainer._algorithm


def test_each_turn_s_own_advantage_gives_the_gradient_written_out(checkpoint, own):
    groups = episodes()
    arrays = encode(groups)
    expected = turn_advantages(groups, 0.5)
    trainer = make(checkpoint, own, "TurnReturns", discount=0.5)
    view = decode(arrays).view(version=0)
    np.testing.assert_allclose(trainer._algorithm.advantages(view), expected, atol=1e-12)
    assert len(set(expected)) > len(decode(arrays).rewards)
    found, metrics = gradient_of(trainer, arrays)
    wanted = plain_gradient(checkpoint, decode(arrays), expected)
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=0, atol=1e-6, err_msg=name)
    norm = math.sqrt(sum(float((value**2).sum()) for value in wanted.values()))
    assert metrics["grad_norm"] == pytest.approx(norm, abs=1e-6)
    assert norm > 0.01


def test_a_sequence_is_whole_in_its_micro_batch(checkpoint, own):
    arrays = encode(random_groups(6))
    found = []
    for size in (30, 10_000):
        trainer = TorchTrainer(
            model=str(checkpoint),
            options={"micro_batch_tokens": size},
            algorithm={"type": f"{own}:Sequences"},
        )
        found.append(trainer.step(arrays).metrics)
    for name in ("loss", "grad_norm", "ratio_max"):
        assert found[0][name] == pytest.approx(found[1][name], rel=1e-5)


def test_what_is_marked_over_the_whole_batch_does_not_depend_on_micro_batches(checkpoint, own):
    arrays = encode(random_groups(6))
    found = []
    for size in (30, 10_000):
        trainer = TorchTrainer(
            model=str(checkpoint),
            options={"micro_batch_tokens": size, "skip_zero_advantage": False},
            algorithm={"type": f"{own}:Surprising"},
        )
        found.append(trainer.step(arrays).metrics)
    assert found[0]["rare"] == pytest.approx(0.25, abs=0.03)
    assert found[0]["gap"] == pytest.approx(0.0, abs=1e-5)
    for name in ("loss", "grad_norm", "rare"):
        assert found[0][name] == pytest.approx(found[1][name], rel=1e-5)


def test_advantages_that_are_not_one_per_token_are_refused_by_name(checkpoint, own):
    batch = encode(random_groups(6))
    with pytest.raises(InvariantError, match=r"PerTrajectory gave advantages of shape \(12,\)"):
        make(checkpoint, own, "PerTrajectory").step(batch)


@pytest.mark.parametrize("name", BUILT_IN["algorithm"])
def test_a_step_of_each_shipped_algorithm_does_not_depend_on_micro_batches(checkpoint, name):
    arrays = encode(random_groups(6))
    own = {"above": 1.5, "k": 2} if name == "pass_at_k" else {}
    found = [
        TorchTrainer(
            model=str(checkpoint),
            options={"micro_batch_tokens": size, "minibatches": 2},
            algorithm={"type": name, "kl_coefficient": 0.1, **own},
        )
        .step(arrays)
        .metrics
        for size in (30, 10_000)
    ]
    assert found[0]["updates"] == 2
    assert found[0]["grad_norm"] > 0
    for metric in ("loss", "policy_loss", "kl", "grad_norm"):
        assert found[0][metric] == pytest.approx(found[1][metric], rel=1e-4, abs=1e-6), metric


@pytest.mark.parametrize(
    ("correction", "limits"),
    [
        ("icepop", {}),
        ("sequence_rejection", {"correction_low": 1e-4, "correction_high": 1e6}),
        ("geometric_rejection", {"correction_low": 0.2, "correction_high": 1e6}),
        ("m2po", {"correction_bound": 4.0}),
        ("opsm", {}),
    ],
)
def test_a_step_reports_drift_effective_samples_and_the_share_rejected(
    checkpoint, correction, limits
):
    """The log-probs of these samples are not the model's: all of it is drift."""
    found = []
    for size in (30, 10_000):
        trainer = TorchTrainer(
            model=str(checkpoint),
            options={"micro_batch_tokens": size},
            algorithm={"type": "grpo", "correction": correction, **limits},
        )
        found.append(trainer.step(encode(random_groups(6))).metrics)
    for metrics in found:
        assert metrics["drift"] > 0.5
        assert 0 < metrics["effective_sample_share"] <= 1 + 1e-9
        assert 0 < metrics["rejected_fraction"] < 1
        assert "correction_square" not in metrics
    for name in ("loss", "grad_norm", "drift", "effective_sample_share", "rejected_fraction"):
        assert found[0][name] == pytest.approx(found[1][name], rel=1e-4)
