from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollart.errors import UserError
from rollart.events import Command, Event, Launch, Resume, StepFinished, TrajectoryBorn, Woke
from rollart.observe.log import EventLog, LogHeader, LogPart, Record, encode_record, read_log

BORN = TrajectoryBorn(id=1, version=0)
LAUNCH = Launch(id=1, group=2, member=3, attempt=0, task=4, slot=5, seed=2**62)


def dicts(hint):
    """Draw what a mapping is read back as."""
    return st.dictionaries(*(st.from_type(each) for each in get_args(hint)))


st.register_type_strategy(Mapping, dicts)
EVENTS = st.one_of(st.from_type(cls) for cls in get_args(Event))


@given(
    time_s=st.floats(allow_nan=False, allow_infinity=False),
    event=EVENTS,
    commands=st.lists(st.from_type(Command), max_size=4),
)
def test_every_event_and_command_comes_back_exactly(tmp_path_factory, time_s, event, commands):
    path = tmp_path_factory.mktemp("log") / "events.jsonl"
    with EventLog(path, LogHeader(seed=1)) as log:
        log.append(time_s, event, commands)
    (part,) = read_log(path)
    expected = Record(time_s=time_s, event=event, commands=tuple(commands))
    assert repr(part.records) == repr((expected,))


def test_every_class_is_written_with_its_name_and_fields():
    for cls in get_args(Event) + get_args(Command):
        names = [each.name for each in fields(cls)]
        assert cls.__name__.isidentifier()
        assert "type" not in names
    line = b'{"t":0.5,"event":{"type":"TrajectoryBorn","id":1,"version":0},"do":[]}\n'
    assert encode_record(0.5, BORN, []) == line


def test_a_resumed_run_adds_a_part_and_cuts_a_torn_line(tmp_path: Path):
    path = tmp_path / "run" / "events.jsonl"
    with EventLog(path, LogHeader(seed=1, rules={"staleness": {"alpha": 1}})) as log:
        log.append(0.5, BORN, [LAUNCH])
    with path.open("a") as file:
        file.write('{"t":1.0,"event":{"type":"Wo')
    assert len(read_log(path)[0].records) == 1
    with EventLog(path, LogHeader(seed=1, snapshot={"version": 3})) as log:
        log.append(0.25, Woke(at_s=0.0), [])
    assert read_log(path) == (
        LogPart(
            header=LogHeader(seed=1, rules={"staleness": {"alpha": 1}}),
            records=(Record(time_s=0.5, event=BORN, commands=(LAUNCH,)),),
        ),
        LogPart(
            header=LogHeader(seed=1, snapshot={"version": 3}),
            records=(Record(time_s=0.25, event=Woke(at_s=0.0), commands=()),),
        ),
    )


@pytest.mark.parametrize("hole", [b"\0" * 4096, b'{"t":1.0,' + b"\0" * 9 + b"\n"])
def test_a_hole_that_a_power_cut_left_ends_the_log(tmp_path: Path, hole):
    path = tmp_path / "events.jsonl"
    with EventLog(path, LogHeader(seed=1)) as log:
        log.append(0.5, BORN, [])
    whole = path.read_bytes()
    path.write_bytes(whole + hole + encode_record(2.0, BORN, []))
    assert [record.time_s for record in read_log(path)[0].records] == [0.5]
    with EventLog(path, LogHeader(seed=1)) as log:
        log.append(1.0, BORN, [])
    assert path.read_bytes().startswith(whole)
    assert [len(part.records) for part in read_log(path)] == [1, 1]


def test_a_file_of_one_torn_line_is_started_anew(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    path.write_text('{"format":2')
    EventLog(path, LogHeader(seed=7)).close()
    assert read_log(path) == (LogPart(header=LogHeader(seed=7), records=()),)


def test_records_are_on_disk_after_a_second_or_a_flush(tmp_path: Path):
    path = tmp_path / "events.jsonl"
    log = EventLog(path, LogHeader(seed=0))
    log.append(0.0, BORN, [])
    log.append(0.5, BORN, [])
    assert len(read_log(path)[0].records) == 1
    log.append(1.0, BORN, [])
    assert len(read_log(path)[0].records) == 3
    log.append(1.1, StepFinished(version=1), [Resume(engine="e")])
    log.flush()
    assert len(read_log(path)[0].records) == 4
    log.close()
    log.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no event log"),
        ('{"format": 99}\n', "log format 99; this version of rollart reads format 2"),
        ("rubbish\n", ":1: not a line of an event log"),
        (
            '{"format":2,"seed":0,"rules":{},"snapshot":null}\n'
            '{"t":1,"event":{"type":"Nope"},"do":[]}\n',
            ":2: not a line of an event log: record.event.type = 'Nope' is not known$",
        ),
        (
            '{"format":2,"seed":0,"rules":{},"snapshot":null}\n{"t":1,"do":[]}\n',
            ":2: not a line of an event log: record.event is missing$",
        ),
        (
            '{"format":2,"seed":0,"rules":{},"snapshot":null}\n{"t":1,"eve\n',
            ":2: not a line of an event log: no whole JSON: it breaks off or errs at column 12$",
        ),
        ("7\n", ":1: not a line of an event log: record must be an object, got 7$"),
        ('{"format":2,"seed":"x"}\n', ":1: not a line of an event log: header.seed must be an int"),
        (
            '{"format":1,"seed":0,"rules":{},"snapshot":null}\n',
            "log format 1; this version of rollart reads format 2",
        ),
    ],
)
def test_what_is_not_a_log_is_refused_with_the_line(tmp_path: Path, text: str, message: str):
    path = tmp_path / "events.jsonl"
    path.write_text(text)
    with pytest.raises(UserError, match=message):
        read_log(path)


def test_a_missing_log_is_named(tmp_path: Path):
    with pytest.raises(UserError, match="no such event log"):
        read_log(tmp_path / "events.jsonl")
