import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from training_samples import make_trajectory, make_turn, random_groups

from rollart.training.batch import RankShare, decode, encode
from rollart.training.packing import IDLE, lay_out, pack, split

lengths = st.lists(st.integers(1, 40), max_size=30).map(lambda values: dict(enumerate(values)))


@given(lengths, st.integers(1, 60))
def test_every_sequence_is_in_one_row_and_no_shared_row_is_too_long(sizes, row_tokens):
    rows = pack(sizes, row_tokens=row_tokens)
    assert sorted(index for row in rows for index in row) == sorted(sizes)
    for row in rows:
        assert len(row) == 1 or sum(sizes[index] for index in row) <= row_tokens


@given(lengths, st.integers(1, 200))
def test_every_row_is_in_one_micro_batch_and_none_with_several_is_too_large(sizes, limit):
    rows = pack(sizes, row_tokens=40)
    groups = split(rows, sizes, micro_batch_tokens=limit)
    assert sorted(row for group in groups for row in group) == sorted(rows)
    for group in groups:
        width = max(sum(sizes[index] for index in row) for row in group)
        assert len(group) == 1 or len(group) * width <= limit


def test_a_sequence_goes_into_the_fullest_row_that_takes_it():
    assert pack({0: 6, 1: 5, 2: 4, 3: 3, 4: 9}, row_tokens=10) == [(4,), (0, 2), (1, 3)]


def test_rows_restart_positions_and_name_who_predicts_what():
    trajectories = [
        make_trajectory(id=0, group=0, reward=0.0, turns=[make_turn([5, 6], [7], [-1.0], [0])]),
        make_trajectory(id=1, group=0, reward=0.0, turns=[make_turn([8], [9], [-1.0], [0])]),
        make_trajectory(
            id=2,
            group=0,
            reward=0.0,
            turns=[make_turn([1], [2, 3], [-1.0] * 2, [0] * 2), make_turn([4], [5], [-1.0], [0])],
        ),
    ]
    batch = decode(encode([trajectories]))
    (micro,) = lay_out(batch, [0, 1, 2], row_tokens=4, micro_batch_tokens=100)
    assert micro.tokens.tolist() == [[1, 2, 3, 4], [5, 6, 8, 0]]
    assert micro.positions.tolist() == [[0, 1, 2, 3], [0, 1, 0, 0]]
    assert micro.segments.tolist() == [[0, 0, 0, 0], [0, 0, 1, 2]]
    assert micro.is_packed
    assert micro.predictors.tolist() == [0, 1, 3, 5, 6]
    assert batch.tokens[micro.places].tolist() == [2, 3, 5, 7, 9]


def test_all_sampled_tokens_are_predicted_once_whatever_the_row_length():
    batch = decode(encode(random_groups(0, groups=4)))
    every = np.flatnonzero(batch.sampled).tolist()
    for row_tokens in (0, 1, 30, 500):
        micros = lay_out(
            batch, range(len(batch.rewards)), row_tokens=row_tokens, micro_batch_tokens=64
        )
        assert sorted(np.concatenate([m.places for m in micros]).tolist()) == every
        for micro in micros:
            ids = micro.tokens.reshape(-1)
            np.testing.assert_array_equal(ids[micro.predictors], batch.tokens[micro.places - 1])
            assert micro.is_packed or row_tokens != 500


def test_rows_of_one_token_mean_no_packing():
    batch = decode(encode(random_groups(1)))
    micros = lay_out(batch, range(12), row_tokens=1, micro_batch_tokens=1000)
    assert [micro.is_packed for micro in micros] == [False]
    assert micros[0].tokens.shape[0] == 12


def test_nothing_to_lay_out_gives_nothing():
    batch = decode(encode(random_groups(0)))
    assert lay_out(batch, [], row_tokens=0, micro_batch_tokens=10) == []


def test_ranks_share_all_sequences_and_have_equally_many_micro_batches():
    batch = decode(encode(random_groups(0, groups=4)))
    every = np.flatnonzero(batch.sampled).tolist()
    for ranks in (2, 3, 16):
        laid = [
            lay_out(
                batch,
                range(len(batch.rewards)),
                row_tokens=0,
                micro_batch_tokens=50,
                share=RankShare(rank=rank, ranks=ranks, attention=0.01),
            )
            for rank in range(ranks)
        ]
        assert len({len(micros) for micros in laid}) == 1
        assert sorted(place for micros in laid for m in micros for place in m.places) == every


def test_a_rank_without_sequences_is_idle_as_long_as_others_work():
    batch = decode(encode(random_groups(0)))
    share = RankShare(rank=1, ranks=2, attention=0.0)
    micros = lay_out(batch, [4], row_tokens=0, micro_batch_tokens=50, share=share)
    assert [micro is IDLE for micro in micros] == [True]
