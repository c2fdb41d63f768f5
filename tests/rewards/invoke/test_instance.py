"""What an instance and its parent tell each other besides calls and rewards."""

import pytest

from rollart.errors import ScoreError
from rollart.rewards.invoke.instance import Settings, describe, restore


@pytest.mark.parametrize("functions", [None, ("math", "mine.py:score")])
def test_settings_keep_what_they_say_and_names_that_are_no_unicode(functions):
    settings = Settings(
        path=("/home/me", "/home/\udcff"),
        concurrency=2,
        memory_bytes=2**29,
        payload_bytes=2**20,
        functions=functions,
    )
    read = Settings.decode(settings.encode())
    assert tuple(read.path) == settings.path
    assert (read.concurrency, read.memory_bytes, read.payload_bytes) == (2, 2**29, 2**20)
    assert read.functions is None if functions is None else tuple(read.functions) == functions


@pytest.mark.parametrize(("is_final", "is_own"), [(False, False), (True, False), (True, True)])
def test_an_error_is_raised_again_as_it_was(is_final, is_own):
    error = restore(describe(ScoreError("no answer", is_final=is_final, is_own=is_own)))
    assert (str(error), error.is_final, error.is_own) == ("no answer", is_final, is_own)


def test_an_error_may_be_said_in_other_words_and_is_cut():
    error = restore(describe(MemoryError("x"), "m" * 5000))
    assert (str(error), error.is_final, error.is_own) == ("m" * 4000, False, False)
