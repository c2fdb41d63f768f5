import pytest

from rollart.control.autoscaling import Scaling
from rollart.errors import ConfigError
from rollart.rewards.invoke.factory import open_invoker
from rollart.rewards.invoke.http import HttpInvoker
from rollart.rewards.invoke.options import CallLimits, InvokerOptions, Reliability
from rollart.rewards.invoke.pool import LocalInvoker
from rollart.rewards.invoke.retry import ReliableInvoker


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (CallLimits, {"memory_bytes": 0}, "invoker.limits.memory_bytes = 0: must be more than 0"),
        (Reliability, {"attempts": 0}, "invoker.reliability.attempts = 0: must be at least 1"),
        (Reliability, {"jitter": 2}, "invoker.reliability.jitter = 2: must lie between 0 and 1"),
        (
            Reliability,
            {"deadline_s": 0},
            "invoker.reliability.deadline_s = 0: must be more than 0",
        ),
        (
            Reliability,
            {"price_per_s": -1},
            "invoker.reliability.price_per_s = -1: must be at least 0",
        ),
        (
            InvokerOptions,
            {"kind": "http", "url": "example.test"},
            "invoker.url = 'example.test': must start with http:// or https://",
        ),
        (
            InvokerOptions,
            {"kind": "lambda"},
            "invoker.function_name = '': must name the deployed function",
        ),
    ],
)
def test_options_out_of_range_are_refused(make, options, message):
    with pytest.raises(ConfigError) as error:
        make(**options)
    assert str(error.value) == message


def test_the_token_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_TOKEN", "secret")
    monkeypatch.delenv("ROLLART_FUNCTION_TOKEN", raising=False)
    assert InvokerOptions(token_env="MY_TOKEN").token == "secret"
    assert InvokerOptions().token == ""
    assert InvokerOptions(token_env="").token == ""


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        (InvokerOptions(), LocalInvoker),
        (InvokerOptions(kind="http", url="http://127.0.0.1:1/"), HttpInvoker),
    ],
)
async def test_an_invoker_is_opened_with_what_makes_it_reliable_around_it(options, kind):
    invoker = open_invoker(options)
    assert isinstance(invoker, ReliableInvoker)
    assert isinstance(invoker._inner, kind)
    await invoker.close()


def test_the_ray_invoker_is_opened_where_ray_is():
    with pytest.raises(ConfigError, match=r"create a rollart\.cluster\.ray_rewards\.RayInvoker"):
        open_invoker(InvokerOptions(kind="ray", scaling=Scaling()))


def test_a_token_is_not_sent_in_the_clear(monkeypatch):
    url = "http://example.test/"
    assert InvokerOptions(kind="http", url=url).token == ""
    monkeypatch.setenv("ROLLART_FUNCTION_TOKEN", "secret")
    with pytest.raises(ConfigError, match="would send ROLLART_FUNCTION_TOKEN unencrypted"):
        InvokerOptions(kind="http", url=url)
    for options in ({"url": "http://127.0.0.1:8080/"}, {"url": url, "token_env": ""}):
        InvokerOptions(kind="http", **options)
