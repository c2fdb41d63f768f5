"""The index of beginnings that rows hold."""

from rollart.inference.torch.cache import PrefixIndex, shared_length


def test_the_row_that_shares_most_blocks_is_found() -> None:
    index = PrefixIndex()
    tokens = list(range(100))
    index.extend(4, tokens, length=40)
    index.extend(2, tokens, length=100)
    index.extend(9, [7, *tokens], length=101)
    assert index.find(tokens[:39]) == 4
    assert index.find(tokens[:70]) == 2
    assert index.find([7, *tokens[:20]]) == 9
    assert index.find(tokens[:15]) is None
    assert index.find([8, *tokens]) is None


def test_trimmed_and_dropped_rows_are_not_found() -> None:
    index = PrefixIndex()
    tokens = list(range(64))
    index.extend(1, tokens, length=64)
    index.extend(2, tokens, length=64)
    index.trim(1, length=20)
    assert (index.find(tokens), index.find(tokens[:16])) == (2, 1)
    index.drop(2)
    assert (index.find(tokens), index.find(tokens[:16])) == (1, 1)
    index.drop(1)
    index.drop(7)
    assert index.find(tokens) is None


def test_extending_a_trimmed_row_records_its_new_tokens() -> None:
    index = PrefixIndex()
    index.extend(1, list(range(64)), length=64)
    index.trim(1, length=16)
    changed = [*range(16), *range(200, 248)]
    index.extend(1, changed, length=64)
    assert index.find(changed[:48]) == 1
    assert index.find([*range(16), 1, *range(15)]) == 1


def test_shared_length_counts_equal_leading_tokens() -> None:
    for left, right, expected in (
        ([], [1], 0),
        ([1, 2, 3], [1, 2, 3, 4], 3),
        ([1, 2, 3, 4], [1, 2, 9, 4], 2),
        ([5, 2], [1, 2], 0),
        (list(range(50)), [*range(49), 7], 49),
    ):
        assert shared_length(left, right) == expected
