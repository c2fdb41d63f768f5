"""Options of the sandbox: which kind, how many at once, what they are made of."""

from dataclasses import dataclass, field
from pathlib import Path

from rollart.errors import ConfigError
from rollart.types import ProgramLimits

KINDS = ("bubblewrap", "plain", "kubernetes")


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions:
    """Where pods run; used by kind "kubernetes" alone."""

    url: str = ""
    """The API server; empty: the one of the cluster this process runs in."""
    namespace: str = "rollart-sandbox"
    """The namespace of the pods: give it a NetworkPolicy that denies all."""
    image: str = "python:3.11-slim"
    """An image with Python."""
    token_file: str = "/var/run/secrets/kubernetes.io/serviceaccount/token"  # noqa: S105
    """A file with the bearer token; read anew for each request, since it is rotated."""
    ca_file: str = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
    """A file with the certificate authority of the API server."""
    runtime_class: str = ""
    """The RuntimeClass of the pods, such as "gvisor"; empty: the cluster's default."""
    start_timeout_s: float = 120.0
    """Seconds a pod may take to be scheduled and started."""

    def __post_init__(self) -> None:
        if self.url and not self.url.startswith(("https://", "http://127.0.0.1", "http://[::1]")):
            fix = "must be https; plain http carries the token in the clear"
            raise ConfigError("sandbox.kubernetes.url", self.url, fix)
        for name in ("namespace", "image", "token_file", "ca_file"):
            if not getattr(self, name):
                raise ConfigError(f"sandbox.kubernetes.{name}", "", "must not be empty")
        if self.start_timeout_s <= 0:
            raise ConfigError(
                "sandbox.kubernetes.start_timeout_s", self.start_timeout_s, "must be above 0"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxOptions:
    """Where programs nobody trusts run, and with what."""

    kind: str = "bubblewrap"
    """bubblewrap, plain (no isolation, wants allow_plain) or kubernetes."""
    allow_plain: bool = False
    """Whether programs may run without isolation: only for code you would run yourself."""
    concurrency: int = 4
    """Programs that run at once; others wait."""
    warm: int = 2
    """Sandboxes started before a program asks for one (bubblewrap); 0 starts each when asked."""
    preload: tuple[str, ...] = ("json", "re", "math", "collections", "itertools", "random")
    """Modules a warm sandbox has imported before its program comes."""
    root: str = ""
    """A prepared tree whose top directories replace or join this machine's /usr and Python."""
    packages: tuple[str, ...] = ()
    """Python packages that programs may import (bubblewrap): installed once, then reused."""
    store: str = "~/.cache/rollart/roots"
    """Where the roots with such packages are kept."""
    python: str = ""
    """The interpreter inside; empty: the one that runs this."""
    cpu_shares: int = 64
    """Weight of all sandboxes together where 1024 is one process of the host."""
    start_timeout_s: float = 30.0
    """Seconds a sandbox may take to start."""
    limits: ProgramLimits = field(default_factory=ProgramLimits)
    """What a program may use unless a reward's own `limits` say something else; one with another
    `files_bytes` than this starts cold."""
    kubernetes: KubernetesOptions = field(default_factory=KubernetesOptions)
    """Where pods run."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ConfigError("sandbox.kind", self.kind, f"choose one of {', '.join(KINDS)}")
        if self.kind == "plain" and not self.allow_plain:
            raise ConfigError(
                "sandbox.kind",
                self.kind,
                "runs programs without isolation; install bubblewrap and use "
                'kind = "bubblewrap", or say sandbox.allow_plain = true',
            )
        if self.concurrency < 1:
            raise ConfigError("sandbox.concurrency", self.concurrency, "must be at least 1")
        if self.warm < 0:
            raise ConfigError("sandbox.warm", self.warm, "must be at least 0")
        if not 2 <= self.cpu_shares <= 1024:
            raise ConfigError("sandbox.cpu_shares", self.cpu_shares, "must be between 2 and 1024")
        if self.start_timeout_s <= 0:
            raise ConfigError("sandbox.start_timeout_s", self.start_timeout_s, "must be above 0")
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
