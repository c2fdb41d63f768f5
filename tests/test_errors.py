"""What of other people's text reaches a terminal."""

import io
import sys
from dataclasses import replace

from records import record

from rollart.cli.output import complain, note, paint, say, say_rows, say_table
from rollart.errors import printable
from rollart.observe.metrics import Metrics
from rollart.observe.progress import Progress
from rollart.observe.recorder import render_trajectory
from rollart.types import TokenTurns

HOSTILE = "a\x1b]0;title\x07b\x1b[2Jc\rd\x9be\u202ef\x00g\x7f"
WRITTEN = r"a\x1b]0;title\x07b\x1b[2Jc\x0dd\x9be\u202ef\x00g\x7f"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_control_characters_are_written_out_and_other_text_stays():
    assert printable(HOSTILE) == WRITTEN
    for plain in ("", "word", "two\n\tlines", "gr\u00fc\u00dfe \u4f60\u597d \U0001f642"):
        assert printable(plain) == plain


def test_only_our_own_colours_reach_a_terminal(monkeypatch):
    out, err = Terminal(), Terminal()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    complain(HOSTILE)
    note(HOSTILE)
    say(f"{paint('ok', '32')} {HOSTILE}")
    say_table({HOSTILE: HOSTILE})
    say_rows([{HOSTILE: HOSTILE}])
    assert f"\x1b[32mok\x1b[0m {WRITTEN}" in out.getvalue()
    for colour in ("0", "1", "2", "31", "32", "33"):
        for stream in (out, err):
            text = stream.getvalue().replace(f"\x1b[{colour}m", "")
            stream.seek(0)
            stream.truncate()
            stream.write(text)
    shown = out.getvalue() + err.getvalue()
    assert printable(shown) == shown


def test_messages_and_samples_of_a_run_show_them_written_out():
    shown = io.StringIO()
    progress = Progress(Metrics(None), steps=1, title=HOSTILE, file=shown)
    progress.message(HOSTILE)
    progress.warn(HOSTILE)
    assert shown.getvalue() == f"{WRITTEN}\nwarning: {WRITTEN}\n"


def test_a_sample_shows_what_an_environment_said_written_out():
    trajectory = record(0)
    assert isinstance(trajectory.payload, TokenTurns)
    turns = tuple(replace(turn, observation=HOSTILE) for turn in trajectory.payload.turns)
    text = render_trajectory(replace(trajectory, payload=TokenTurns(turns=turns)))
    assert WRITTEN in text
    assert printable(text) == text
