"""Sandboxes: adapters of the `Sandbox` port that run programs written by a model.

Each sandbox runs one program and is then deleted, so nothing leaks from one program to the next.
`docs/sandbox.md` lists what is blocked, what is not, and how both were tested.
"""

from dataclasses import replace
from pathlib import Path

from rollart.errors import ConfigError, SandboxError
from rollart.ports import Sandbox
from rollart.sandbox.options import SandboxOptions


def open_sandbox(options: SandboxOptions) -> Sandbox:
    """Open the sandbox that the options name; raise a ConfigError that names what is missing.

    Example:
        >>> sandbox = open_sandbox(SandboxOptions(kind="bubblewrap", warm=1))

    """
    match options.kind:
        case "plain":
            from rollart.sandbox.subprocess import PlainSandbox  # noqa: PLC0415 of its kind alone

            return PlainSandbox(options)
        case "kubernetes":
            from rollart.sandbox.kubernetes import KubernetesSandbox  # noqa: PLC0415

            return KubernetesSandbox(options)
        case _:
            from rollart.sandbox.bubblewrap import BubblewrapSandbox  # noqa: PLC0415

            return BubblewrapSandbox(_prepared(options))


def _prepared(options: SandboxOptions) -> SandboxOptions:
    """Return the options with `root` set to one that holds the packages; build it if needed."""
    if not options.packages:
        return options
    from rollart.sandbox.root import build_root  # noqa: PLC0415

    store = Path(options.cache).expanduser()
    try:
        root = build_root(options.packages, store=store, python=options.python)
    except SandboxError as error:
        raise ConfigError("sandbox.packages", options.packages, str(error)) from error
    return replace(options, root=str(root), packages=())
