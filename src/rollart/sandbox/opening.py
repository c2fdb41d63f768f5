"""Opening the sandbox the options name."""

from rollart.ports import Sandbox
from rollart.sandbox.kubernetes import KubernetesSandbox
from rollart.sandbox.options import SandboxOptions
from rollart.sandbox.plain import PlainSandbox
from rollart.sandbox.pool import BubblewrapSandbox


def open_sandbox(options: SandboxOptions) -> Sandbox:
    """Open a sandbox; raise a ConfigError that says what is missing."""
    match options.kind:
        case "plain":
            return PlainSandbox(options)
        case "kubernetes":
            return KubernetesSandbox(options)
        case _:
            return BubblewrapSandbox(options)
