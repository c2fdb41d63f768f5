from dataclasses import replace

import numpy as np
import pytest
from training_samples import make_trajectory, make_turn

from rollart.errors import InvariantError
from rollart.training.batch import decode, encode


def two_groups():
    first = make_trajectory(
        id=7,
        group=3,
        reward=1.0,
        success=True,
        turns=[
            make_turn([5, 6], [7], [-0.5], [2], reward=0.25),
            make_turn([8], [9, 10], [-1.5, -0.25], [2, 3], reward=0.75),
        ],
    )
    second = make_trajectory(
        id=9, group=4, reward=0.0, turns=[make_turn([11, 12], [13], [-2.0], [3])]
    )
    return [[first], [], [second]]


def test_turns_are_concatenated_as_they_were_read_and_sampled():
    (first,), _, (second,) = two_groups()
    second = replace(second, stop="max_tokens")
    batch = encode([[first], [], [second]], temperature=0.5, top_p=0.9, top_k=7, min_p=0.1)
    expected = {
        "tokens": np.array([5, 6, 7, 8, 9, 10, 11, 12, 13], np.int32),
        "sampled": np.array([0, 0, 1, 0, 1, 1, 0, 0, 1], bool),
        "logprobs": np.array([0, 0, -0.5, 0, -1.5, -0.25, 0, 0, -2], np.float32),
        "versions": np.array([-1, -1, 2, -1, 2, 3, -1, -1, 3], np.int32),
        "turns": np.array([0, 0, 0, 1, 1, 1, 2, 2, 2], np.int32),
        "offsets": np.array([0, 6, 9], np.int64),
        "turn_rewards": np.array([0.25, 0.75, 0.0]),
        "turn_states": np.array([0, 0, 1], np.int64),
        "turn_offsets": np.array([0, 2, 3], np.int64),
        "groups": np.array([0, 1], np.int64),
        "ids": np.array([7, 9], np.int64),
        "rewards": np.array([1.0, 0.0]),
        "successes": np.array([True, False]),
        "cuts": np.array([False, True]),
        "temperatures": np.array([0.5, 0.5]),
        "top_ps": np.array([0.9, 0.9]),
        "top_ks": np.array([7, 7], np.int64),
        "min_ps": np.array([0.1, 0.1]),
    }
    assert batch.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(batch[name], array)
        assert batch[name].dtype == array.dtype


def test_decode_returns_the_same_arrays_without_a_copy():
    arrays = encode(two_groups())
    batch = decode(arrays)
    assert all(getattr(batch, name) is array for name, array in arrays.items())
    assert batch.owners.tolist() == [0] * 6 + [1] * 3
    assert batch.sampled_counts.tolist() == [3, 1]


def test_an_algorithm_sees_trajectories_turns_and_tokens():
    view = decode(encode(two_groups())).view(version=3)
    found = {name: getattr(view, name) for name in ("turn_owners", "owners", "turns", "ages")}
    assert {name: each.tolist() for name, each in found.items()} == {
        "turn_owners": [0, 0, 1],
        "owners": [0] * 6 + [1] * 3,
        "turns": [0, 0, 0, 1, 1, 1, 2, 2, 2],
        "ages": [0, 0, 1, 0, 1, 0, 0, 0, 0],
    }
    assert view.turn_rewards[view.turns].tolist() == [0.25] * 3 + [0.75] * 3 + [0.0] * 3
    assert [view.sampled_counts.tolist(), view.groups.tolist()] == [[3, 1], [0, 1]]
    assert (view.proximal, view.reference) == (None, None)


def test_attempts_that_a_limit_cut_short_can_be_left_out():
    def member(id_: int, group: int, *, stop="terminated", is_cut=False):
        turns = [make_turn([1], [id_], [-1.0], [0], reward=id_), make_turn([2], [3], [-2.0], [0])]
        turns[-1] = replace(turns[-1], is_cut=is_cut)
        made = make_trajectory(id=id_, group=group, reward=float(id_), turns=turns)
        return replace(made, stop=stop)

    kept = [[member(5, 0)], [member(8, 2), member(9, 2)]]
    cut = [member(4, 0, stop="max_turns"), member(6, 1, stop="max_tokens")]
    cut += [member(7, 1, stop="truncated"), member(10, 2, is_cut=True)]
    whole = decode(encode([[cut[0], *kept[0]], cut[1:3], [*kept[1], cut[3]]]))
    assert whole.cuts.tolist() == [True, False, True, True, False, False, True]
    expected = encode(kept)
    left = whole.without_cuts()
    for name, array in expected.items():
        np.testing.assert_array_equal(getattr(left, name), array, err_msg=name)
    assert decode(expected).without_cuts().ids.tolist() == [5, 8, 9]
    assert decode(encode([cut])).without_cuts().rewards.tolist() == []


def test_a_batch_without_trajectories_is_valid():
    batch = decode(encode([]))
    assert batch.owners.tolist() == []
    assert batch.sampled_counts.tolist() == []


def test_a_turn_of_unequal_lengths_is_refused():
    trajectory = make_trajectory(
        id=1, group=0, reward=0.0, turns=[make_turn([1], [2, 3], [-1.0], [0, 0])]
    )
    with pytest.raises(InvariantError, match="trajectory 1 has a turn of 2 tokens, 1 log-probs"):
        encode([[trajectory]])


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("tokens", lambda a: a.astype(np.int64), "batch.tokens is int64 of shape"),
        ("tokens", lambda a: a[:-1], "batch.tokens has 8 entries for 9 tokens"),
        ("tokens", lambda a: -a, "tokens must not be negative"),
        ("offsets", lambda a: a + 1, "batch.offsets must rise from 0"),
        ("offsets", lambda _: np.array([0, 0, 9]), "batch.offsets must rise from 0"),
        ("rewards", lambda a: a[:1], "batch.rewards has 1 entries for 2 trajectories"),
        ("rewards", lambda a: a * np.nan, "rewards must be finite"),
        ("logprobs", lambda a: a - np.float32(np.inf), "logprobs must be finite"),
        ("logprobs", lambda a: a - np.float32(1), "logprobs must be 0 where nothing was sampled"),
        ("versions", lambda a: np.full_like(a, -1), "versions must be at least 0 where sampled"),
        ("versions", np.abs, "versions must be -1 where nothing was sampled"),
        ("groups", lambda a: a * 2, "groups must ascend from 0 without gaps"),
        ("turns", lambda a: a[::-1].copy(), "turns must be those of the token's trajectory"),
        ("turns", lambda a: np.array([1, 0, 0, 1, 1, 1, 2, 2, 2], a.dtype), "turns must ascend"),
        ("turn_rewards", lambda a: a[:-1], "batch.turn_rewards has 2 entries for 3 turns"),
        ("turn_states", lambda a: a[:-1], "batch.turn_states has 2 entries for 3 turns"),
        ("turn_rewards", lambda a: a * np.nan, "turn_rewards must be finite"),
        ("turn_offsets", lambda a: a + 1, "batch.turn_offsets must rise from 0"),
        ("turn_offsets", lambda a: a[:-1], "batch.turn_offsets must rise from 0"),
        ("temperatures", lambda a: a * 0, "temperatures must be finite and above 0"),
        ("top_ps", lambda a: a * 0, "top_ps must be above 0 and at most 1"),
        ("top_ks", lambda a: a - 1, "top_ks must be at least 0"),
        ("min_ps", lambda a: a + 2, "min_ps must lie between 0 and 1"),
    ],
)
def test_a_malformed_array_is_refused_by_name(name, change, message):
    arrays = encode(two_groups())
    arrays[name] = change(arrays[name])
    with pytest.raises(InvariantError, match=message):
        decode(arrays)


def test_a_sampled_first_token_is_refused_because_nothing_predicts_it():
    trajectory = make_trajectory(id=1, group=0, reward=0.0, turns=[make_turn([], [2], [-1.0], [0])])
    with pytest.raises(InvariantError, match="first token of a trajectory is never sampled"):
        encode([[trajectory]])


def test_a_missing_array_is_refused_by_name():
    arrays = encode(two_groups())
    del arrays["versions"]
    with pytest.raises(InvariantError, match="batch without the array versions"):
        decode(arrays)


def test_turns_of_a_group_before_which_the_agent_saw_the_same_share_a_state():
    def attempt(number: int, group: int, *seen: str):
        turns = [replace(make_turn([1], [2], [-1.0], [0]), observation=each) for each in seen]
        return make_trajectory(id=number, group=group, reward=0.0, turns=turns)

    groups = [[attempt(0, 0, "a", "b"), attempt(1, 0, "a", "c", "b")], [attempt(2, 1, "a")]]
    states = decode(encode(groups)).view(version=0).turn_states
    assert states is not None
    assert states.tolist() == [0, 1, 0, 2, 1, 3]
