"""What calls print is kept apart, bounded, and the streams are given back."""

import contextvars
import io
import sys
import threading

import pytest

from rollart.errors import ScoreError
from rollart.rewards.captured_output import captured


def test_both_streams_and_their_bytes_are_captured_and_the_end_is_kept():
    before = sys.stdout, sys.stderr
    with captured() as output:
        sys.stdout.write("out ")
        sys.stderr.write("err ")
        sys.stdout.buffer.write(b"bytes \xff")
        sys.stdout.flush()
        assert sys.stdout.encoding == "utf-8"
    assert (output.tail(), output.count_bytes) == ("out err bytes \ufffd", 15)
    assert (sys.stdout, sys.stderr) == before


def test_only_the_last_of_much_is_kept():
    with captured() as output:
        sys.stdout.write("a" * 1000 + "the end")
    assert output.tail() == "a" * 393 + "the end"


def test_beyond_the_limit_a_write_raises_and_what_follows_is_told_too():
    with captured(limit_bytes=10) as output:
        sys.stdout.write("0123456789")
        with pytest.raises(ScoreError, match="it printed more than 10 bytes: print less") as caught:
            sys.stdout.write("!")
    assert caught.value.is_final
    with pytest.raises(ScoreError, match="it printed more than 10 bytes"):
        output.check()


def test_threads_print_apart_and_a_thread_without_a_call_prints_as_ever(capsys):
    ready = threading.Barrier(3)
    tails: dict[str, str] = {}

    def call(word: str) -> None:
        with captured() as output:
            ready.wait()
            sys.stdout.write(word)
            ready.wait()
        tails[word] = output.tail()

    def other() -> None:
        ready.wait()
        sys.stdout.write("as ever")
        ready.wait()

    before = sys.stdout
    threads = [threading.Thread(target=call, args=(word,)) for word in ("one", "two")]
    threads.append(threading.Thread(target=other))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tails == {"one": "one", "two": "two"}
    assert capsys.readouterr() == ("as ever", "")
    assert sys.stdout is before


def test_who_takes_the_streams_meanwhile_keeps_them():
    before = sys.stdout
    taken = io.StringIO()
    try:
        with captured():
            sys.stdout = taken
        assert sys.stdout is taken
    finally:
        sys.stdout = before


def test_many_calls_at_once_with_threads_of_their_own_lose_and_mix_nothing(capsys):
    before = sys.stdout, sys.stderr
    wrong: list[object] = []

    def write(letter: str) -> None:
        for _ in range(20):
            sys.stdout.write(letter * 5)
            sys.stderr.write(letter * 5)

    def call(letter: str) -> None:
        for _ in range(20):
            with captured() as output:
                threads = [
                    threading.Thread(target=contextvars.copy_context().run, args=(write, letter))
                    for _ in range(3)
                ]
                for thread in threads:
                    thread.start()
                for thread in threads:
                    thread.join()
            if (output.count_bytes, set(output.tail())) != (600, {letter}):
                wrong.append((letter, output.count_bytes, output.tail()))

    calls = [threading.Thread(target=call, args=(letter,)) for letter in "abcdefgh"]
    for thread in calls:
        thread.start()
    for thread in calls:
        thread.join()
    assert wrong == []
    assert capsys.readouterr() == ("", "")
    assert (sys.stdout, sys.stderr) == before


def test_a_call_that_finds_the_streams_exchanged_takes_them_again():
    before, other = sys.stdout, io.StringIO()
    try:
        with captured():
            sys.stdout = other
            with captured() as inner:
                sys.stdout.write("mine")
        assert (inner.tail(), other.getvalue()) == ("mine", "")
        assert sys.stdout is other
    finally:
        sys.stdout = before
