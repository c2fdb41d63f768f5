"""Sandboxes: adapters of the `Sandbox` port that run programs written by a model.

Each sandbox runs one program and is then deleted, so nothing leaks from one program to the next.
`docs/sandbox.md` lists what is blocked, what is not, and how both were tested.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rollart.errors import ConfigError, SandboxError
from rollart.ports import Sandbox
from rollart.sandbox.options import SandboxOptions
from rollart.types import Program

_TRIAL = Program(argv=("python3", "-c", "print(6 * 7)"))


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


async def try_sandbox(options: SandboxOptions) -> Mapping[str, str]:
    """Run one program in a sandbox; return which mechanism enforces each limit.

    Raise a ConfigError if the options do not fit this machine, a SandboxError if the program did
    not run as it should.

    Example:
        >>> (await try_sandbox(SandboxOptions()))["memory"]
        'cgroup v1, all processes together'

    """
    sandbox = open_sandbox(replace(options, warm=0))
    try:
        result = await sandbox.run(replace(_TRIAL, limits=options.limits))
        if (result.end, result.stdout) != ("exited", b"42\n"):
            said = (result.stderr or result.stdout)[-400:].decode(errors="replace").strip()
            raise SandboxError(
                f"the sandbox runs, but a first program ended as {result.end}: {said}"
            )
        return sandbox.describe()
    finally:
        await sandbox.close()


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
