"""Where judges may be asked, and what their keys may travel over."""

import asyncio
from collections.abc import Iterator

import pytest
from rewarded import attempt, call

from rollart.errors import ScoreError
from rollart.rewards import registry as loading
from rollart.rewards.chat import read_judge
from rollart.rewards.invoke.options import may_carry_secrets
from rollart.rewards.scoring import score
from rollart.types import Json, ScoreCall


def refused(one: ScoreCall) -> ScoreError:
    with pytest.raises(ScoreError) as caught:
        asyncio.run(score(one))
    return caught.value


@pytest.fixture
def pinned() -> Iterator[None]:
    loading.pin({"judge"})
    yield
    loading._pinned.clear()


@pytest.mark.usefixtures("pinned")
@pytest.mark.parametrize(
    ("judge", "message"),
    [
        ({"base_url": "https://mine.test/v1"}, "is not allowed here: add it to ROLLART_JUD"),
        (
            {"base_url": "https://a.test/v1", "api_key_variable": "OTHER_API_KEY"},
            "add https://a.test/v1=OTHER_API_KEY",
        ),
        ({"base_url": "https://b.test", "api_key_variable": "A_API_KEY"}, "https://b.test=A_API"),
    ],
)
def test_a_served_judge_asks_only_what_its_server_names(
    judge: dict[str, Json], message: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ROLLART_JUDGES", "https://a.test/v1=A_API_KEY https://b.test/")
    error = refused(call("judge", attempt("4"), judge=judge))
    assert message in str(error)
    assert error.is_final


@pytest.mark.usefixtures("pinned")
def test_a_served_judge_shows_a_key_to_the_address_it_stands_beside(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("ROLLART_JUDGES", "https://a.test/v1=A_API_KEY https://b.test/")
    named = {"base_url": "https://a.test/v1/", "api_key_variable": "A_API_KEY"}
    assert read_judge(named).api_key_variable == "A_API_KEY"
    assert read_judge({"base_url": "https://a.test/v1"}).base_url == "https://a.test/v1"
    assert read_judge({"base_url": "https://b.test"}).base_url == "https://b.test"
    assert read_judge({"engine": "here"}).engine == "here"


def test_a_key_is_not_sent_in_the_clear():
    judge: Json = {"base_url": "http://a.test/v1", "api_key_variable": "A_API_KEY"}
    error = refused(call("judge", attempt("4"), judge=judge))
    assert "would send A_API_KEY unencrypted: use https" in str(error)


@pytest.mark.parametrize(
    ("url", "may"),
    [
        ("https://a.test", True),
        ("http://localhost:80/v1", True),
        ("http://127.0.0.2", True),
        ("http://[::1]:9/", True),
        ("http://a.test", False),
        ("http://10.0.0.1", False),
        ("http://127.0.0.1.a.test", False),
        ("http://127.0.0.1@a.test", False),
        ("http://[::1", False),
    ],
)
def test_secrets_travel_hidden_or_not_at_all(url: str, may: bool):
    assert may_carry_secrets(url) is may
