"""The numbers that papers and other libraries are compared by, one algorithm at a time."""

import math

import numpy as np
import pytest
import torch

from benchmarks.algorithm_parts.batches import Attempt, Drawn, Step
from benchmarks.algorithm_parts.product import Product, view_of
from rollart.errors import ConfigError
from rollart.training.algorithms.clip_cov import ClipCov, covariances_of
from rollart.training.algorithms.dapo import overlong_penalties
from rollart.training.algorithms.policy_loss import weigh_tokens
from rollart.training.options import read_algorithm

REWARDS, LENGTHS = (1.0, 0.0, 0.0, 0.5), (2, 4, 1, 3)


def token(delta: float = 0.0, *, base: float = -5.0, drift: float = 0.0) -> Drawn:
    """A token whose log-prob is `delta` above the proximal one, `drift` above the behaviour's."""
    return Drawn(
        behaviour=base, proximal=base + drift, reference=base, logp=base + drift + delta, entropy=0
    )


def attempts_of(
    rewards=REWARDS, lengths=LENGTHS, groups: tuple[int, ...] | None = None
) -> list[Attempt]:
    return [
        Attempt(group=group, reward=reward, steps=[Step(tokens=[token() for _ in range(length)])])
        for reward, length, group in zip(
            rewards, lengths, groups or (0,) * len(rewards), strict=True
        )
    ]


def advantages_of(kind: str, attempts: list[Attempt], **options) -> list[float]:
    """The advantage of each attempt's first token."""
    algorithm = read_algorithm({"type": kind, **options})
    found = Product(algorithm, attempts, 1).advantages
    firsts = np.cumsum([0, *(len(attempt.tokens) for attempt in attempts[:-1])])
    return [found[first] for first in firsts]


def losses_of(kind: str, advantage: float, deltas: list[float], **options) -> Product:
    """What one attempt costs whose reward is its advantage, with REINFORCE's advantages."""
    steps = [Step(tokens=[token(delta) for delta in deltas])]
    algorithm = read_algorithm({"type": kind, "advantage": "reinforce", **options})
    return Product(algorithm, [Attempt(group=0, reward=advantage, steps=steps)], 1)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("reinforce", [1.0, 0.0, 0.0, 0.5]),
        ("grpo", [1.5076, -0.9045, -0.9045, 0.3015]),
        ("dr_grpo", [0.625, -0.375, -0.375, 0.125]),
        ("rloo", [0.8333, -0.5, -0.5, 0.1667]),
        ("opo", [0.65, -0.35, -0.35, 0.15]),
        ("reinforce_plus_plus", [1.6645, -0.8963, -0.8963, 0.3841]),
        ("reinforce_plus_plus_baseline", [1.6645, -0.8963, -0.8963, 0.3841]),
        ("max_rl", [1.6667, -1.0, -1.0, 0.3333]),
        ("raft_plus_plus", [1.0, 0.0, 0.0, 0.0]),
    ],
)
def test_advantages_of_one_group(kind, expected):
    assert advantages_of(kind, attempts_of()) == pytest.approx(expected, abs=5e-5)


def test_lite_ppo_divides_by_the_deviation_of_the_batch():
    attempts = attempts_of((1.0, 0.0, 1.0, 0.5), (1, 1, 1, 1), (0, 0, 1, 1))
    expected = [1.206, -1.206, 0.603, -0.603]
    assert advantages_of("lite_ppo", attempts) == pytest.approx(expected, abs=5e-4)


def test_the_baseline_form_of_reinforce_plus_plus_differs_with_two_groups():
    attempts = attempts_of((1.0, 0.0, 1.0, 0.5), (1, 1, 1, 1), (0, 0, 1, 1))
    scale = math.sqrt((0.25 + 0.25 + 0.0625 + 0.0625) / 4)
    expected = [0.5 / scale, -0.5 / scale, 0.25 / scale, -0.25 / scale]
    found = advantages_of("reinforce_plus_plus_baseline", attempts)
    assert found == pytest.approx(expected, abs=1e-6)


def test_pass_at_two_of_four_with_one_right():
    found = advantages_of("pass_at_k", attempts_of((1.0, 0.0, 0.0, 0.0)), k=2)
    assert found == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3])
    for rewards in ((1.0, 1.0, 1.0, 1.0), (0.0, 0.0, 0.0, 0.0)):
        assert advantages_of("pass_at_k", attempts_of(rewards), k=2) == [0.0] * 4


def test_a_group_of_fewer_than_k_counts_as_k_of_its_size():
    found = advantages_of("pass_at_k", attempts_of((1.0, 0.0), (1, 1)), k=8)
    assert found == [0.0, 0.0]  # the set of both always passes


@pytest.mark.parametrize(
    ("rewards", "discount", "expected"),
    [((0.0, 1.0), 0.9, [0.9, 1.0]), ((0.0, 0.0, 1.0), 0.9, [0.81, 0.9, 1.0])],
)
def test_segment_returns(rewards, discount, expected):
    steps = [Step(tokens=[token(), token()], reward=reward) for reward in rewards]
    attempts = [Attempt(group=0, reward=sum(rewards), steps=steps)]
    algorithm = read_algorithm({"type": "turn_returns", "norm": "none", "discount": discount})
    found = Product(algorithm, attempts, 1).advantages
    assert found == pytest.approx([value for value in expected for _ in range(2)])


def test_a_score_from_the_end_is_the_last_turns():
    steps = [Step(tokens=[token()]), Step(tokens=[token()], reward=0.25)]
    attempts = [Attempt(group=0, reward=1.0, steps=steps)]
    algorithm = read_algorithm({"type": "turn_returns", "norm": "none", "discount": 0.5})
    assert Product(algorithm, attempts, 1).advantages == pytest.approx([0.5, 1.0])


def test_gigpo_compares_turns_of_equal_states():
    """Attempt a's return is 1 from s1; b's is 0 everywhere; s2 is met once."""
    seen = {"a": (("s0", 0.0), ("s1", 1.0)), "b": (("s0", 0.0), ("s2", 0.0), ("s1", 0.0))}
    attempts = [
        Attempt(
            group=0,
            reward=sum(reward for _, reward in turns),
            steps=[Step(tokens=[token()], state=state, reward=given) for state, given in turns],
        )
        for turns in seen.values()
    ]
    algorithm = read_algorithm({"type": "gigpo", "discount": 0.9})
    found = Product(algorithm, attempts, 1).advantages
    assert found == pytest.approx([0.95, 1.0, -0.95, -0.5, -1.0])


def test_overlong_attempts_cost_more_up_to_1():
    found = overlong_penalties(np.array([16, 17, 20, 21]), limit=20, buffer=4)
    assert found.tolist() == [0.0, -0.25, -1.0, -1.0]
    assert overlong_penalties(np.array([20, 21]), limit=20, buffer=0).tolist() == [0.0, -1.0]
    assert overlong_penalties(np.array([9]), limit=0, buffer=0).tolist() == [0.0]
    with pytest.raises(ConfigError, match=r"overlong_buffer = 9: must be at most"):
        read_algorithm({"type": "dapo", "overlong_limit": 5, "overlong_buffer": 9})


def test_gspo_takes_the_mean_of_the_log_ratios():
    found = losses_of("gspo", 1.0, [0.1, -0.3, 0.05], clip_low=1.0, clip_high=9.0)
    assert [-each for each in found.losses] == pytest.approx([0.951229] * 3, abs=1e-6)
    # The sequence's gradient is shared out; a token's own is 1/length of the ratio as well.
    assert found.gradients == pytest.approx([-0.951229 / 3] * 3, abs=1e-6)
    token_level = losses_of("gspo", 1.0, [0.1, -0.3, 0.05], level="token", clip_high=9.0)
    assert [-each for each in token_level.losses] == pytest.approx([0.951229] * 3, abs=1e-6)


def test_gmpo_clips_on_the_side_of_the_advantage():
    good, bad = (losses_of("gmpo", sign, [0.1, -0.3, 0.9]) for sign in (1.0, -1.0))
    assert [-each for each in good.losses] == pytest.approx([1.0689] * 3, abs=5e-5)
    assert bad.losses == pytest.approx([1.2628] * 3, abs=5e-5)
    assert good.gradients[2] == 0.0
    assert bad.gradients[2] > 0.0


def test_cispo_weighs_by_the_clipped_ratio():
    found = losses_of("cispo", 1.0, [math.log(9.0)])
    assert found.gradients == pytest.approx([-5.0])
    assert found.losses == pytest.approx([-5.0 * (-5.0 + math.log(9.0))])


def test_sapo_has_a_soft_gate():
    good = losses_of("sapo", 1.0, [math.log(1.5)])
    bad = losses_of("sapo", -1.0, [math.log(0.5)])
    assert good.losses == pytest.approx([-2.4898], abs=5e-5)
    assert bad.losses == pytest.approx([1.4159], abs=5e-5)
    on_policy = losses_of("sapo", 1.0, [0.0])
    assert on_policy.gradients == pytest.approx([-1.0])


def test_topr_tapers_bad_trajectories_alone():
    bad = losses_of("topr", -1.0, [-0.1, -0.2])
    assert [2 * each for each in bad.gradients] == pytest.approx([0.7408] * 2, abs=5e-5)
    rising = losses_of("topr", -1.0, [0.1, -0.2, 0.9])
    assert [3 * each for each in rising.gradients] == pytest.approx([1.0] * 3)
    good = losses_of("topr", 1.0, [-0.1, -0.2])
    assert [2 * each for each in good.gradients] == pytest.approx([-1.0] * 2)


def test_opmd_pulls_back_to_the_first_weights():
    assert losses_of("opmd", 1.0, [0.5]).gradients == pytest.approx([-0.95])


def test_clipping_of_ppo_higher_above():
    for advantage, ratio, cost in ((1.0, 1.5, -1.28), (-1.0, 0.5, 0.8)):
        steps = [Step(tokens=[token(math.log(ratio))])]
        attempt = Attempt(group=0, reward=advantage, steps=steps)
        found = Product(read_algorithm({"type": "reinforce"}), [attempt], 1)
        assert found.losses == pytest.approx([cost])
        assert found.gradients == [0.0]


@pytest.mark.parametrize(("before", "now", "is_masked"), [(0.25, 0.5, True), (0.001, 0.003, False)])
@pytest.mark.parametrize(("divergence", "bound"), [("tv", 0.2), ("kl", 0.05)])
def test_dppo_masks_a_change_of_probability_not_of_ratio(before, now, is_masked, divergence, bound):
    drawn = token(math.log(now / before), base=math.log(before))
    attempts = [Attempt(group=0, reward=1.0, steps=[Step(tokens=[drawn])])]
    options = {"advantage": "reinforce", "divergence": divergence, "bound": bound}
    found = Product(read_algorithm({"type": "dppo", **options}), attempts, 1)
    assert found.losses == pytest.approx([0.0 if is_masked else -now / before], rel=1e-5)
    assert bool(found.metrics[0]["clip_fraction"]) == is_masked


def test_the_covariance_of_advantage_and_log_prob():
    attempts = [
        Attempt(group=0, reward=1.0, steps=[Step(tokens=[token(base=-0.1), token(base=-2.0)])]),
        Attempt(group=0, reward=-1.0, steps=[Step(tokens=[token(base=-0.1), token(base=-2.0)])]),
    ]
    view = view_of(attempts)
    advantages = view.rewards[view.owners]
    found = covariances_of(view, advantages)[view.sampled]
    assert found.tolist() == pytest.approx([0.95, -0.95, -0.95, 0.95])
    algorithm = ClipCov(advantage="reinforce", cov_low=0.5)
    chosen = algorithm.columns(view, advantages)["covariance_fraction"][view.sampled]
    assert chosen.sum() == 1  # at least one, though 2e-4 of four is none
    assert chosen[[1, 2]].tolist() == [0.0, 0.0]
    again = algorithm.columns(view, advantages)["covariance_fraction"][view.sampled]
    assert again.tolist() == chosen.tolist()


DRIFTS = (0.1, -0.2, 0.9)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"correction": "tis"}, [1.1052, 0.8187, 2.0]),
        ({"correction": "decoupled"}, [1.1052, 0.8187, 2.0]),
        ({"correction": "icepop"}, [1.1052, 0.8187, 2.4596]),
        ({"correction": "icepop", "correction_high": 1.1}, [0.0, 0.8187, 0.0]),
        ({"correction": "sequence_tis", "correction_cap": 9.0}, [2.2255] * 3),
        ({"correction": "sequence_tis"}, [2.0] * 3),
        ({"correction": "sequence_rejection", "correction_high": 3.0}, [2.2255] * 3),
        ({"correction": "sequence_rejection"}, [0.0] * 3),
        ({"correction": "geometric_rejection", "correction_high": 1.31}, [1.0] * 3),
        ({"correction": "geometric_rejection", "correction_high": 1.30}, [0.0] * 3),
        ({"correction": "none"}, [1.0] * 3),
    ],
)
def test_what_stale_tokens_weigh_tokens(options, expected):
    steps = [Step(tokens=[token(drift=drift) for drift in DRIFTS])]
    attempts = [Attempt(group=0, reward=1.0, steps=steps)]
    algorithm = read_algorithm({"type": "cispo", "advantage": "reinforce", **options})
    found = Product(algorithm, attempts, 1).metrics[0]
    assert found["correction_mean"].tolist() == pytest.approx(expected, abs=5e-5)
    assert found["correction_square"].tolist() == pytest.approx(
        [each**2 for each in found["correction_mean"].tolist()]
    )
    assert found["rejected_fraction"].tolist() == [each == 0.0 for each in expected]
    assert found["drift"].tolist() == pytest.approx([abs(each) for each in DRIFTS], abs=1e-6)


def test_m2po_drops_the_largest_drifts_of_the_whole_batch():
    drifts = (0.5, 0.3, 0.1, 0.05, 0.0)
    steps = [Step(tokens=[token(drift=drift)]) for drift in drifts]
    attempts = [Attempt(group=0, reward=1.0, steps=[step]) for step in steps]
    options = {"type": "cispo", "advantage": "reinforce", "correction": "m2po"}
    found = Product(read_algorithm(options), attempts, 2)
    dropped = torch.cat([each["rejected_fraction"] for each in found.metrics])
    assert dropped.sum() == 1
    assert found.gradients[0] == 0.0
    assert all(found.gradients[1:])


def test_rejected_members_leave_the_baselines():
    attempts = attempts_of((1.0, 0.0, 0.0, 0.5), (1, 1, 1, 1))
    attempts[3].steps[0].tokens[0] = token(drift=2.0)
    options = {"type": "cispo", "advantage": "dr_grpo", "correction": "sequence_rejection"}
    found = Product(read_algorithm(options), attempts, 1)
    assert found.advantages == pytest.approx([2 / 3, -1 / 3, -1 / 3, 0.0])
    assert found.gradients[3] == 0.0


def test_opsm_rejects_bad_sequences_that_have_become_unlikely():
    for advantage, delta, is_rejected in (
        (-1.0, -0.6, True),
        (1.0, -0.6, False),
        (-1, -0.4, False),
    ):
        found = losses_of("cispo", advantage, [delta, delta], correction="opsm")
        assert found.metrics[0]["rejected_fraction"].tolist() == [is_rejected] * 2
        assert any(found.gradients) != is_rejected


@pytest.mark.parametrize(
    ("kind", "constant", "expected"),
    [
        ("token_mean", 1, 29 / 6),
        ("sequence_mean", 1, 4.0),
        ("constant", 1, 14.5),
        ("constant", 8, 1.8125),
        ("prompt_mean", 1, (1.5 + 6.5) / 2),
    ],
)
def test_aggregations(kind, constant, expected):
    rows, groups = [[1, 2], [5, 6, 7, 8]], np.array([0, 1])
    weights = weigh_tokens(kind, np.array([2, 4]), groups, constant_tokens=constant)
    found = sum(weight * sum(row) for weight, row in zip(weights, rows, strict=True))
    assert found == pytest.approx(expected)


def test_a_prompt_counts_once_however_many_attempts_it_has():
    rows, groups = [[1, 2], [5, 6, 7, 8], [3]], np.array([0, 0, 1])
    weights = weigh_tokens("prompt_mean", np.array([2, 4, 1]), groups, constant_tokens=1)
    found = sum(weight * sum(row) for weight, row in zip(weights, rows, strict=True))
    assert found == pytest.approx((29 / 6 + 3) / 2)
    none = np.zeros(0, np.int64)
    assert weigh_tokens("prompt_mean", none, none, constant_tokens=1).tolist() == []


def test_a_key_that_the_algorithm_does_not_read_is_refused_with_those_that_do():
    with pytest.raises(ConfigError) as caught:
        read_algorithm({"type": "sapo", "clip_log": 0.4})
    assert str(caught.value) == (
        'algorithm.clip_log = 0.4: algorithm "sapo" does not read it; these do: gmpo'
    )
    with pytest.raises(ConfigError, match="is not an option of the trainer"):
        read_algorithm({"type": "sapo", "clip_lag": 0.4})
