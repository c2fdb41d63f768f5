"""Options of invokers: where reward functions run, their limits, retries and prices.

An options value is valid once built: every field is checked at construction. A token never appears
in an option; an option names the environment variable that holds it.

Which URLs secrets may be sent to: https, and this machine itself.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Annotated, Literal
from urllib.parse import urlsplit

from rollart.constraints import AtLeast, Between, Fixed, MoreThan, check_fields
from rollart.control.autoscaling import Scaling
from rollart.errors import ConfigError

_GUARD = Fixed("a guard against mistakes; no trajectory or score comes near it")
_MOST_BYTES = 16 * 2**20


def may_carry_secrets(url: str) -> bool:
    """Return whether data sent to a URL is encrypted or never leaves this machine."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
    except ValueError:
        return False
    if parts.scheme == "https" or host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLimits:
    """What one call, or one instance, may use.

    Example:
        >>> CallLimits(timeout_s=20.0, memory_bytes=4 * 2**30)

    """

    timeout_s: Annotated[float, MoreThan(0)] = 60.0
    """Seconds one delivery of a call may take; local: including the import of its function."""
    payload_bytes: Annotated[int, MoreThan(0), _GUARD] = _MOST_BYTES
    """Most bytes of a call as JSON."""
    response_bytes: Annotated[int, MoreThan(0), _GUARD] = _MOST_BYTES
    """Most bytes of an answer."""
    start_timeout_s: Annotated[float, MoreThan(0)] = 60.0
    """Local: seconds an instance may take to start; ray: including the wait for a node."""
    memory_bytes: Annotated[int, MoreThan(0)] = 2 * 2**30
    """Local, ray: memory one instance may hold (its data segment and private mappings)."""
    output_bytes: Annotated[int, MoreThan(0), _GUARD] = _MOST_BYTES
    """Local, ray: bytes an instance may print during a call, also outside Python's streams."""

    def __post_init__(self) -> None:
        check_fields(self, "invoker.limits")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reliability:
    """How often a call is retried, and what it costs.

    Example:
        >>> Reliability(attempts=6, hedge="p95", deadline_s=120.0)

    """

    attempts: Annotated[int, AtLeast(1)] = 4
    """Deliveries, one after another, before a call fails."""
    backoff_s: Annotated[float, AtLeast(0)] = 0.2
    """Seconds before the second delivery; doubled before each further one."""
    backoff_max_s: Annotated[float, Fixed("an outage ends; longer waits would outlast it")] = 10.0
    """Most seconds between deliveries, unless backoff_s is more."""
    jitter: Annotated[float, Between(0, 1), Fixed("waits from half to one and a half times")] = 0.5
    """Waits vary by this fraction, so that calls that failed together are not retried together."""
    deadline_s: Annotated[float, MoreThan(0)] = 600.0
    """Seconds after which a call fails, from its first place or first wait at an open circuit."""
    hedge: Literal["never", "p95", "after"] = "never"
    """When a late call is delivered a second time: after the 95th percentile, or a fixed time."""
    hedge_after_s: Annotated[float, MoreThan(0)] = 1.0
    """For hedge = after: seconds without an answer; for p95: the shortest such time."""
    breaker_failures: Annotated[int, AtLeast(0)] = 16
    """Failed deliveries of a function in a row that open its circuit; 0: it never opens."""
    breaker_rest_s: Annotated[float, MoreThan(0), Fixed("a probe costs one call")] = 5.0
    """Seconds an open circuit rests before a call probes it."""
    breaker_probes: Annotated[int, AtLeast(1), Fixed("one failed probe may be chance")] = 3
    """Failed probes in a row after which a function that never answered gets no more waiting."""
    price_per_call: Annotated[float, AtLeast(0)] = 0.0
    """Price of one delivery, in your currency."""
    price_per_s: Annotated[float, AtLeast(0)] = 0.0
    """Price of one second of a delivery."""
    seed: Annotated[int, Fixed("no score depends on it")] = 0
    """Seeds the jitter."""

    def __post_init__(self) -> None:
        check_fields(self, "invoker.reliability")


@dataclass(frozen=True, slots=True, kw_only=True)
class InvokerOptions:
    """Where reward functions run.

    Example:
        >>> InvokerOptions(kind="http", url="https://score.example.com")

    """

    kind: Literal["local", "http", "lambda", "ray"] = "local"
    """Processes on this machine, a function URL, AWS Lambda, or tasks of a Ray cluster."""
    url: str = ""
    """For http: the function's URL."""
    token_env: str = "ROLLART_FUNCTION_TOKEN"  # noqa: S105
    """For http: environment variable that holds the bearer token; "": no token."""
    function_name: str = ""
    """For lambda: name or ARN of the deployed function."""
    region: str = ""
    """For lambda: region; "": the one of the AWS configuration."""
    endpoint_url: str = ""
    """For lambda: another endpoint with the Invoke API; "": AWS."""
    address: str = ""
    """For ray: the cluster, "auto" or host:port; "": the run's own, or a local Ray."""
    cpus: float = 1.0
    """For ray: CPUs of a node that `concurrency` calls reserve together; 0 reserves none."""
    resources: Mapping[str, float] = field(default_factory=dict[str, float])
    """For ray: custom resources of a node that `concurrency` calls reserve together."""
    scaling: Scaling = field(default_factory=Scaling)
    """How many instances may exist, and how many calls run at once."""
    limits: CallLimits = field(default_factory=CallLimits)
    """What one call, or one instance, may use."""
    reliability: Reliability = field(default_factory=Reliability)
    """How often a call is retried, and what it costs."""

    def __post_init__(self) -> None:
        check_fields(self, "invoker")
        if self.kind == "http" and not self.url.startswith(("http://", "https://")):
            raise ConfigError("invoker.url", self.url, "must start with http:// or https://")
        if self.kind == "http" and self.token and not may_carry_secrets(self.url):
            fix = f'would send {self.token_env} unencrypted: use https, or set token_env = ""'
            raise ConfigError("invoker.url", self.url, fix)
        if self.kind == "lambda" and not self.function_name:
            fix = "must name the deployed function"
            raise ConfigError("invoker.function_name", self.function_name, fix)
        for name, amount in {"cpus": self.cpus, **self.resources}.items():
            if not 0 <= amount < math.inf:
                field_ = name if name == "cpus" else f"resources.{name}"
                raise ConfigError(f"invoker.{field_}", amount, "must be a number of at least 0")

    @property
    def token(self) -> str:
        """The bearer token from the environment; "" if there is none."""
        return os.environ.get(self.token_env, "") if self.token_env else ""
