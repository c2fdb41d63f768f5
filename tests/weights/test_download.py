from dataclasses import dataclass

import pytest

from rollart.errors import StorageError
from rollart.weights.download import read_json


@dataclass
class Answers:
    """A store that gives these answers one after another, and then has nothing."""

    data: list[bytes]
    place: str = "the store"

    def get(self, key):
        if not self.data:
            raise KeyError(key)
        return self.data.pop(0)


def test_what_makes_no_sense_is_read_once_more():
    assert read_json(Answers([b'{"a": 1} torn', b'{"a": 1}']), "manifest") == {"a": 1}


def test_what_was_removed_while_it_was_read_is_not_there():
    with pytest.raises(KeyError):
        read_json(Answers([b'{"a": 1} torn']), "manifest")


def test_what_makes_no_sense_twice_is_damaged():
    with pytest.raises(StorageError, match="manifest in the store is damaged"):
        read_json(Answers([b"torn", b"torn", b"{}"]), "manifest")
