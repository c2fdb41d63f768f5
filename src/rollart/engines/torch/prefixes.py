"""Prefixes: which rows hold the keys and values of a given beginning.

Sequences are cut into blocks; a block's name is a hash of all tokens up to its end, so walking a
new prompt block by block finds the row that shares most with it in time linear in the prompt.
Names only suggest a row: whoever copies compares the tokens.
"""

from collections.abc import Iterator, Sequence

_BLOCK_TOKENS = 16


class PrefixIndex:
    """Maps beginnings to the rows that hold them."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[int, None]] = {}
        self._names: dict[int, list[int]] = {}

    def extend(self, row: int, tokens: Sequence[int], *, length: int) -> None:
        """Record that a row holds the first `length` tokens; earlier blocks are as recorded."""
        names = self._names.setdefault(row, [])
        for name in _names(tokens, length, done=len(names), last=names[-1] if names else 0):
            names.append(name)
            self._rows.setdefault(name, {})[row] = None

    def trim(self, row: int, *, length: int) -> None:
        """Record that a row holds no more than its first `length` tokens."""
        names = self._names.get(row, [])
        while len(names) > length // _BLOCK_TOKENS:
            name = names.pop()
            rows = self._rows[name]
            del rows[row]
            if not rows:
                del self._rows[name]

    def drop(self, row: int) -> None:
        """Forget a row."""
        self.trim(row, length=0)
        self._names.pop(row, None)

    def find(self, tokens: Sequence[int]) -> int | None:
        """Return the row that shares the most blocks with `tokens`, the earliest of equals."""
        found = None
        for name in _names(tokens, len(tokens), done=0, last=0):
            rows = self._rows.get(name)
            if not rows:
                break
            found = next(iter(rows))
        return found


def _names(tokens: Sequence[int], length: int, *, done: int, last: int) -> Iterator[int]:
    """Yield the names of the whole blocks after the first `done`."""
    for start in range(done * _BLOCK_TOKENS, length - _BLOCK_TOKENS + 1, _BLOCK_TOKENS):
        last = hash((last, *tokens[start : start + _BLOCK_TOKENS]))
        yield last


def shared_length(left: Sequence[int], right: Sequence[int]) -> int:
    """Return how many leading tokens two sequences of one type have in common."""
    length = min(len(left), len(right))
    if left[:length] == right[:length]:
        return length
    low = 0
    while length - low > 1:
        middle = (low + length) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            length = middle
    return low
