"""Offering: how a process that runs reward functions comes by the sandbox of the run's config.

Such a process is started by an invoker and knows the run only by its environment: one variable
names `offer_sandbox`, which it calls at the first need, the other holds the options as JSON. It
imports no more than that takes, since a cold start waits for it.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rollart.errors import ConfigError
from rollart.rewards.context import SET_UP_VARIABLE, use_sandbox
from rollart.sandbox.opening import open_sandbox
from rollart.sandbox.options import KubernetesOptions, SandboxOptions
from rollart.types import ProgramLimits

OPTIONS_VARIABLE = "ROLLART_SANDBOX"


def sandbox_environment(options: SandboxOptions) -> Mapping[str, str]:
    """Return the variables by which a process offers this sandbox to reward functions."""
    return {
        SET_UP_VARIABLE: f"{__name__}:{offer_sandbox.__name__}",
        OPTIONS_VARIABLE: json.dumps(asdict(options)),
    }


def offer_sandbox() -> None:
    """Say how a sandbox is opened here: as the environment describes it."""
    options = read_options(os.environ.get(OPTIONS_VARIABLE, ""))
    use_sandbox(lambda: open_sandbox(options))


def read_options(text: str) -> SandboxOptions:
    """Return the options that were written as JSON."""
    try:
        tree: dict[str, Any] = json.loads(text)
        tree["limits"] = ProgramLimits(**tree["limits"])
        tree["kubernetes"] = KubernetesOptions(**tree["kubernetes"])
        for name in ("preload", "packages"):
            tree[name] = tuple(tree[name])
        return SandboxOptions(**tree)
    except (ValueError, TypeError, KeyError) as error:
        fix = f"must describe a sandbox as JSON: {type(error).__name__}: {error}"
        raise ConfigError(OPTIONS_VARIABLE, text, fix) from None
