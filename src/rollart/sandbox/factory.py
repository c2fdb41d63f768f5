"""Opening the sandbox the options name."""

from dataclasses import replace
from pathlib import Path

from rollart.errors import ConfigError, SandboxError
from rollart.ports import Sandbox
from rollart.sandbox.bubblewrap import BubblewrapSandbox
from rollart.sandbox.kubernetes import KubernetesSandbox
from rollart.sandbox.options import SandboxOptions
from rollart.sandbox.root import build_root
from rollart.sandbox.subprocess import PlainSandbox


def open_sandbox(options: SandboxOptions) -> Sandbox:
    """Open a sandbox; raise a ConfigError that says what is missing."""
    match options.kind:
        case "plain":
            return PlainSandbox(options)
        case "kubernetes":
            return KubernetesSandbox(options)
        case _:
            return BubblewrapSandbox(_prepared(options))


def _prepared(options: SandboxOptions) -> SandboxOptions:
    """Return the options with the root their packages are in, made now if nobody has yet."""
    if not options.packages:
        return options
    store = Path(options.cache).expanduser()
    try:
        root = build_root(options.packages, store=store, python=options.python)
    except SandboxError as error:
        raise ConfigError("sandbox.packages", options.packages, str(error)) from error
    return replace(options, root=str(root), packages=())
