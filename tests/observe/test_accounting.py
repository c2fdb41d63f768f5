import pytest

from rollart.observe.accounting import Accounting
from rollart.observe.ledger import Ledger


class Hand:
    """A clock moved by hand."""

    def __init__(self):
        self.now_s = 5.0

    def now(self):
        return self.now_s

    async def sleep(self, seconds):
        raise NotImplementedError


@pytest.fixture
def hand():
    return Hand()


@pytest.fixture
def spending(hand):
    return Accounting(Ledger(), hand)


def test_an_evaluation_on_the_way_is_not_counted_as_training_too(spending, hand):
    with spending.evaluating():
        hand.now_s += 1
    hand.now_s += 100
    spending.begin_training()
    hand.now_s += 10
    with spending.evaluating():
        hand.now_s += 2
        assert spending.total()["seconds"] == {"evaluation": 3, "training": 10}
        hand.now_s += 2
    hand.now_s += 20
    assert spending.total()["seconds"] == {"evaluation": 5, "training": 30}
    spending.end_training()
    hand.now_s += 100
    with spending.evaluating():
        hand.now_s += 1
    assert spending.total()["seconds"] == {"evaluation": 6, "training": 30}


def test_evaluations_at_once_are_counted_once(spending, hand):
    with spending.evaluating():
        hand.now_s += 1
        with spending.evaluating():
            hand.now_s += 1
        hand.now_s += 1
    assert spending.total()["seconds"] == {"evaluation": 3}


def test_training_that_ends_during_an_evaluation_is_counted_to_its_end(spending, hand):
    spending.begin_training()
    hand.now_s += 1
    with spending.evaluating():
        hand.now_s += 1
        spending.end_training()
        hand.now_s += 1
    hand.now_s += 1
    assert spending.total()["seconds"] == {"evaluation": 2, "training": 1}


def test_an_evaluation_that_is_interrupted_has_taken_its_time(spending, hand):
    with pytest.raises(KeyboardInterrupt), spending.evaluating():
        hand.now_s += 3
        raise KeyboardInterrupt
    assert spending.total()["seconds"] == {"evaluation": 3}


def test_a_run_that_goes_on_counts_on(spending, hand):
    before = {"seconds": {"model": 2.0, "training": 7.0}, "tokens": {"trained": 4, "wasted": {}}}
    spending.go_on(before)
    spending.note("model", 1.0)
    spending.begin_training()
    hand.now_s += 1
    assert spending.total() == {
        "seconds": {"model": 3.0, "training": 8.0},
        "tokens": {"trained": 4, "wasted": {}},
    }
