"""What takes long is shared between threads, by its size alone."""

import pytest
import torch

from rollart.inference.torch.model import Threads


@pytest.fixture(autouse=True)
def restore_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("tokens", "used"), [(1, 1), (511, 1), (512, 2), (2048, 2)])
def test_linear_maps_of_many_products_are_shared(tokens: int, used: int) -> None:
    Threads(2).share_linear(tokens=tokens, layer_size=(1 << 26) // 512)
    assert torch.get_num_threads() == used


@pytest.mark.parametrize(
    ("rows", "row_size", "tokens", "used"),
    [(32, 4096, 1, 1), (32, 16384, 1, 2), (1, 65536, 1, 1), (1, 65536, 64, 2)],
)
def test_attention_to_many_or_by_many_is_shared(
    rows: int, row_size: int, tokens: int, used: int
) -> None:
    Threads(2).share_attention(rows=rows, row_size=row_size, tokens=tokens)
    assert torch.get_num_threads() == used


def test_all_threads_are_left_to_what_follows() -> None:
    threads = Threads(2)
    threads.share_linear(tokens=1, layer_size=1)
    threads.share_all()
    assert torch.get_num_threads() == 2


def test_an_engine_of_one_thread_leaves_the_number_alone() -> None:
    torch.set_num_threads(2)
    Threads(1).share_linear(tokens=1, layer_size=1)
    assert torch.get_num_threads() == 2
