from hypothesis import given
from hypothesis import strategies as st

from rollart.training.batch import deal

LENGTHS = st.dictionaries(st.integers(0, 200), st.integers(1, 3000), max_size=60)


def cost(part: dict[int, int], attention: float) -> float:
    return sum(size + attention * size * size for size in part.values())


def test_the_dearest_go_first_to_whoever_has_least_to_do():
    lengths = {0: 10, 1: 7, 2: 6, 3: 3}
    assert deal(lengths, ranks=2, attention=0.0) == [{0: 10, 3: 3}, {1: 7, 2: 6}]


def test_attention_makes_long_sequences_dearer():
    lengths = {0: 100, 1: 50, 2: 50, 3: 50}
    assert deal(lengths, ranks=2, attention=0.0) == [{0: 100, 3: 50}, {1: 50, 2: 50}]
    assert deal(lengths, ranks=2, attention=0.1) == [{0: 100}, {1: 50, 2: 50, 3: 50}]


def test_one_rank_gets_all_in_order_and_too_many_ranks_get_nothing():
    lengths = {3: 1, 1: 5, 2: 4}
    assert list(deal(lengths, ranks=1, attention=1.0)[0].items()) == list(lengths.items())
    assert deal({0: 4}, ranks=3, attention=0.0) == [{0: 4}, {}, {}]


@given(LENGTHS, st.integers(1, 8), st.sampled_from([0.0, 0.001, 0.1]))
def test_nothing_is_lost_and_no_rank_is_ahead_by_more_than_a_sequence(lengths, ranks, attention):
    parts = deal(lengths, ranks=ranks, attention=attention)
    assert sorted(index for part in parts for index in part) == sorted(lengths)
    loads = [cost(part, attention) for part in parts]
    dearest = max((cost({0: size}, attention) for size in lengths.values()), default=0.0)
    assert max(loads) - min(loads) <= dearest + 1e-6
