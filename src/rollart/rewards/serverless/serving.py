"""Serving reward functions over HTTP on this machine: the application, its processes, a socket."""

import os
import socket
from dataclasses import dataclass, field

import uvicorn

from rollart.control.scaling import Scaling
from rollart.errors import ConfigError, UserError
from rollart.rewards.loading import load_function
from rollart.rewards.serverless.function import FunctionApp
from rollart.rewards.serverless.local import LocalInvoker
from rollart.rewards.serverless.options import Limits

_GRACE_S = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """What is served where."""

    functions: tuple[str, ...]
    """Names of the functions; a call of any other is refused."""
    host: str = "127.0.0.1"
    port: int = 8080
    """0 takes any free one."""
    token: str = ""
    """The bearer token callers must show; "" wants none."""
    scaling: Scaling = field(default_factory=lambda: Scaling(min_instances=1))
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise ConfigError("port", self.port, "must lie between 0 and 65535")
        for name in self.functions:
            load_function(name)


def bind(options: ServeOptions) -> socket.socket:
    """Return the socket to serve on."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        return socket.create_server((options.host, options.port), family=family, backlog=1024)
    except OSError as error:
        where = f"{options.host}:{options.port}"
        raise UserError(f"cannot serve on {where}: {error}; choose another --port") from error


def serve(options: ServeOptions, listener: socket.socket) -> None:
    """Serve until the process is told to end."""
    invoker = LocalInvoker(options.scaling, limits=options.limits, functions=options.functions)
    app = FunctionApp(
        invoker,
        functions=options.functions,
        token=options.token,
        payload_bytes=options.limits.payload_bytes,
        on_start=invoker.warm,
    )
    config = uvicorn.Config(
        app,
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=_GRACE_S,
    )
    uvicorn.Server(config).run(sockets=[listener])


def default_port() -> int:
    """Return the port a platform asks for through PORT, else 8080."""
    text = os.environ.get("PORT", "8080")
    if not text.isdigit():
        raise ConfigError("PORT", text, "must be a number")
    return int(text)
