import asyncio
import json

import pytest

from rollart.errors import ConfigError
from rollart.pipelines.rewards import (
    OPTIONS_VARIABLE,
    offer_sandbox,
    read_options,
    sandbox_environment,
)
from rollart.rewards.context import SET_UP_VARIABLE, close_sandbox, get_sandbox, use_sandbox
from rollart.sandbox.options import SandboxOptions
from rollart.sandbox.subprocess import PlainSandbox
from rollart.types import ProgramLimits

OPTIONS = SandboxOptions(
    kind="plain", allow_plain=True, preload=("json",), limits=ProgramLimits(wall_s=3.0)
)


def test_a_sandbox_described_in_the_environment_is_the_one_that_is_offered(monkeypatch):
    variables = sandbox_environment(OPTIONS)
    assert read_options(variables[OPTIONS_VARIABLE]) == OPTIONS
    assert variables[SET_UP_VARIABLE] == "rollart.pipelines.rewards:offer_sandbox"
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    async def ask() -> object:
        sandbox = get_sandbox()
        await close_sandbox()
        return sandbox

    try:
        offer_sandbox()
        assert isinstance(asyncio.run(ask()), PlainSandbox)
    finally:
        use_sandbox(None)


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"limits": {"odd": 1}})])
def test_a_description_that_cannot_be_read_is_one_message(text):
    with pytest.raises(ConfigError, match=r"ROLLART_SANDBOX = .*must describe a sandbox as JSON"):
        read_options(text)
