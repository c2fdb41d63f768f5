"""Tables of figures: what is missing, wrong or unknown is named."""

import pytest

from rollart.errors import ConfigError
from rollart.hardware.gpus import Entry, shipped, unknown

ENTRY = Entry(section="links.x", values={"rate": 3, "count": 2, "note": "said", "none": 0})


def refusal(call, *args, **options) -> str:
    with pytest.raises(ConfigError) as caught:
        call(*args, **options)
    return str(caught.value)


def test_figures_come_out_as_what_they_are():
    assert (ENTRY.number("rate"), ENTRY.whole("count")) == (3.0, 2)
    assert isinstance(ENTRY.number("rate"), float)
    assert ENTRY.number("none", may_be_zero=True) == 0.0
    assert ENTRY.whole("none", least=0) == 0
    assert ENTRY.text("note", default="unsaid") == "said"
    assert ENTRY.text("other", default="unsaid") == "unsaid"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (0, "links.x.rate = 0: must be above 0 and finite"),
        (-1, "links.x.rate = -1: must be above 0 and finite"),
        (float("inf"), "links.x.rate = inf: must be above 0 and finite"),
        (float("nan"), "links.x.rate = nan: must be above 0 and finite"),
        (True, "links.x.rate = True: must be a number above 0"),
        ("3", "links.x.rate = '3': must be a number above 0"),
    ],
)
def test_a_number_out_of_its_range_is_refused(value, message):
    assert refusal(Entry(section="links.x", values={"rate": value}).number, "rate") == message


@pytest.mark.parametrize("value", [0, 1.0, True, "1"])
def test_a_whole_number_is_no_other(value):
    entry = Entry(section="gpus.x", values={"gpus": value})
    expected = f"gpus.x.gpus = {value!r}: must be a whole number of at least 1"
    assert refusal(entry.whole, "gpus") == expected


def test_what_is_missing_is_asked_for_by_its_kind():
    assert refusal(ENTRY.number, "lost") == "links.x.lost: is missing; give a number"
    assert refusal(ENTRY.whole, "lost") == "links.x.lost: is missing; give a whole number"


def test_a_text_must_say_something():
    entry = Entry(section="gpus.x", values={"source": "  ", "note": 3})
    for key, value in (("source", "'  '"), ("note", "3")):
        message = f"gpus.x.{key} = {value}: must be a text that is not empty"
        assert refusal(entry.text, key, default="x") == message


def test_a_field_nothing_reads_is_refused_with_the_nearest_if_there_is_one():
    ENTRY.check_fields(("rate", "count", "note", "none"))
    assert refusal(ENTRY.check_fields, ("rates", "count", "note", "none")) == (
        "links.x.rate = 3: no such field; did you mean rates? fields: rates, count, note, none"
    )
    assert refusal(ENTRY.check_fields, ("speed",)) == (
        "links.x.rate = 3: no such field; fields: speed"
    )


def test_shipped_tables_are_read_by_name():
    assert list(shipped("hardware.toml", table="links"))[:2] == ["tcp_200g", "rdma_400g"]


def test_an_unknown_name_is_answered_with_the_nearest_and_all():
    known = ("H20", "H800", "H100-SXM", "L20")
    assert str(unknown("gpu", "h100", known=known)) == (
        "gpu = 'h100': not known; nearest: H100-SXM, H800; must be one of H20, H800, H100-SXM, L20"
    )
    assert str(unknown("gpu", "TPU-v9", known=known)) == (
        "gpu = 'TPU-v9': not known; must be one of H20, H800, H100-SXM, L20"
    )
