"""Options of the sandbox: which kind, how many at once, with which root and packages.

An options value is valid once built: every field is checked at construction, and running without
isolation has to be asked for by name.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from rollart.constraints import AtLeast, Between, MoreThan, NonEmpty, check_fields
from rollart.errors import ConfigError
from rollart.types import ProgramLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions:
    """Where pods run; only `kind = "kubernetes"` uses it.

    Example:
        >>> KubernetesOptions(url="https://10.0.0.1:6443", runtime_class="gvisor")

    """

    url: str = ""
    """URL of the API server; empty: that of the cluster this process runs in."""
    namespace: Annotated[str, NonEmpty()] = "rollart-sandbox"
    """Namespace of the pods; it should have a NetworkPolicy that denies all traffic."""
    image: Annotated[str, NonEmpty()] = "python:3.11-slim"
    """An image with Python."""
    token_file: Annotated[str, NonEmpty()] = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105
    """File with the bearer token; read for each request, because the cluster rotates it."""
    ca_file: Annotated[str, NonEmpty()] = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
    """File with the certificate authority of the API server."""
    runtime_class: str = ""
    """RuntimeClass of the pods, such as "gvisor"; empty: the cluster's default."""
    start_timeout_s: Annotated[float, MoreThan(0)] = 120.0
    """Seconds a pod may take to be scheduled and started."""

    def __post_init__(self) -> None:
        check_fields(self, "sandbox.kubernetes")
        if self.url and not self.url.startswith(("https://", "http://127.0.0.1", "http://[::1]")):
            fix = "must be https: plain http would send the token unencrypted"
            raise ConfigError("sandbox.kubernetes.url", self.url, fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxOptions:
    """Where untrusted programs run, and with which limits.

    Example:
        >>> SandboxOptions(concurrency=8, packages=("numpy",))

    """

    kind: Literal["bubblewrap", "plain", "kubernetes"] = "bubblewrap"
    """bubblewrap, plain (no isolation, needs allow_plain) or kubernetes."""
    allow_plain: bool = False
    """Whether programs may run without isolation: only for code you would run yourself."""
    allow_unbounded_memory: bool = False
    """Without control groups (bubblewrap): whether programs may start processes, each of which may
    hold `limits.memory_bytes`; else a program is one process."""
    concurrency: Annotated[int, AtLeast(1)] = 4
    """Programs that run at once; others wait."""
    warm: Annotated[int, AtLeast(0)] = 2
    """Sandboxes started in advance (bubblewrap); 0 starts each when a program needs it."""
    preload: tuple[str, ...] = ("json", "re", "math", "collections", "itertools", "random")
    """Modules a warm sandbox imports before it gets its program."""
    root: str = ""
    """Directory whose top directories replace or join this machine's /usr and Python."""
    packages: tuple[str, ...] = ()
    """Python packages that programs may import (bubblewrap): installed once, then reused."""
    cache: str = "~/.cache/rollart/roots"
    """Directory that keeps the roots with installed packages."""
    python: str = ""
    """Interpreter inside the sandbox; empty: the one that runs this process."""
    cpu_shares: Annotated[int, Between(2, 1024)] = 64
    """CPU weight of all sandboxes together; one process of the host has 1024."""
    limits: ProgramLimits = field(default_factory=ProgramLimits)
    """What a program may use unless a reward sets `limits` itself; a program with a different
    `files_bytes` cannot use a warm sandbox."""
    kubernetes: KubernetesOptions = field(default_factory=KubernetesOptions)
    """Where pods run."""

    def __post_init__(self) -> None:
        check_fields(self, "sandbox")
        if self.kind == "plain" and not self.allow_plain:
            raise ConfigError(
                "sandbox.kind",
                self.kind,
                "runs programs without isolation; install bubblewrap and use "
                'kind = "bubblewrap", or set sandbox.allow_plain = true',
            )
        for name in self.preload:
            if not all(part.isidentifier() for part in name.split(".")):
                raise ConfigError("sandbox.preload", name, "must be a module's name")
        if self.root and not Path(self.root).is_dir():
            raise ConfigError("sandbox.root", self.root, "must be a directory")
        if self.packages and (self.root or self.kind != "bubblewrap"):
            fix = 'need kind = "bubblewrap" and no sandbox.root; '
            fix += "otherwise install them in that root or in the image"
            raise ConfigError("sandbox.packages", self.packages, fix)
        if self.python and not Path(self.python).is_absolute():
            raise ConfigError("sandbox.python", self.python, "must be an absolute path")
