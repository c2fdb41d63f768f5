"""Options of the sandbox: which kind, how many at once, what they are made of."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from rollart.constraints import AtLeast, Between, MoreThan, NonEmpty, check_fields
from rollart.errors import ConfigError
from rollart.types import ProgramLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions:
    """Where pods run; used by kind "kubernetes" alone.

    Example:
        >>> KubernetesOptions(url="https://10.0.0.1:6443", runtime_class="gvisor")

    """

    url: str = ""
    """The API server; empty: the one of the cluster this process runs in."""
    namespace: Annotated[str, NonEmpty()] = "rollart-sandbox"
    """The namespace of the pods: give it a NetworkPolicy that denies all."""
    image: Annotated[str, NonEmpty()] = "python:3.11-slim"
    """An image with Python."""
    token_file: Annotated[str, NonEmpty()] = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105
    """A file with the bearer token; read anew for each request, since it is rotated."""
    ca_file: Annotated[str, NonEmpty()] = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
    """A file with the certificate authority of the API server."""
    runtime_class: str = ""
    """The RuntimeClass of the pods, such as "gvisor"; empty: the cluster's default."""
    start_timeout_s: Annotated[float, MoreThan(0)] = 120.0
    """Seconds a pod may take to be scheduled and started."""

    def __post_init__(self) -> None:
        check_fields(self, "sandbox.kubernetes")
        if self.url and not self.url.startswith(("https://", "http://127.0.0.1", "http://[::1]")):
            fix = "must be https; plain http carries the token in the clear"
            raise ConfigError("sandbox.kubernetes.url", self.url, fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxOptions:
    """Where programs nobody trusts run, and with what.

    Example:
        >>> SandboxOptions(concurrency=8, packages=("numpy",))

    """

    kind: Literal["bubblewrap", "plain", "kubernetes"] = "bubblewrap"
    """bubblewrap, plain (no isolation, wants allow_plain) or kubernetes."""
    allow_plain: bool = False
    """Whether programs may run without isolation: only for code you would run yourself."""
    concurrency: Annotated[int, AtLeast(1)] = 4
    """Programs that run at once; others wait."""
    warm: Annotated[int, AtLeast(0)] = 2
    """Sandboxes started before a program asks for one (bubblewrap); 0 starts each when asked."""
    preload: tuple[str, ...] = ("json", "re", "math", "collections", "itertools", "random")
    """Modules a warm sandbox has imported before its program comes."""
    root: str = ""
    """A prepared tree whose top directories replace or join this machine's /usr and Python."""
    packages: tuple[str, ...] = ()
    """Python packages that programs may import (bubblewrap): installed once, then reused."""
    cache: str = "~/.cache/rollart/roots"
    """Where the roots with such packages are kept."""
    python: str = ""
    """The interpreter inside; empty: the one that runs this."""
    cpu_shares: Annotated[int, Between(2, 1024)] = 64
    """Weight of all sandboxes together where 1024 is one process of the host."""
    start_timeout_s: Annotated[float, MoreThan(0)] = 30.0
    """Seconds a sandbox may take to start."""
    limits: ProgramLimits = field(default_factory=ProgramLimits)
    """What a program may use unless a reward's own `limits` say something else; one with another
    `files_bytes` than this starts cold."""
    kubernetes: KubernetesOptions = field(default_factory=KubernetesOptions)
    """Where pods run."""

    def __post_init__(self) -> None:
        check_fields(self, "sandbox")
        if self.kind == "plain" and not self.allow_plain:
            raise ConfigError(
                "sandbox.kind",
                self.kind,
                "runs programs without isolation; install bubblewrap and use "
                'kind = "bubblewrap", or say sandbox.allow_plain = true',
            )
        for name in self.preload:
            if not all(part.isidentifier() for part in name.split(".")):
                raise ConfigError("sandbox.preload", name, "must be a module's name")
        if self.root and not Path(self.root).is_dir():
            raise ConfigError("sandbox.root", self.root, "must be a directory")
        if self.packages and (self.root or self.kind != "bubblewrap"):
            fix = (
                'want kind = "bubblewrap" and no sandbox.root: install them there, or in the image'
            )
            raise ConfigError("sandbox.packages", self.packages, fix)
        if self.python and not Path(self.python).is_absolute():
            raise ConfigError("sandbox.python", self.python, "must be an absolute path")
