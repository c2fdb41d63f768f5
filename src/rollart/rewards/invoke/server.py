"""The reward server: an ASGI application as function platforms expect it, and its HTTP server.

`POST /` (or `/invoke`) takes a call as JSON: plain, with the headers of a CloudEvent, or inside a
structured one. The answer is its rewards. Only functions named at the start are run. A recent call
with the same key and content is answered from memory and a running one is joined, so a duplicate
delivery does not run twice. A failure is a status with a JSON reason and is not remembered, so a
retry runs again. `GET` on a health path needs no token.

A caller that has not sent its whole request in time is answered with 408 or disconnected, and only
so many connections are served at once; others are answered with 503, which callers retry.
"""

import asyncio
import hmac
import json
import os
import socket
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from rollart.control.autoscaling import Scaling
from rollart.errors import ConfigError, ScoreError, UserError
from rollart.ports import RewardInvoker
from rollart.rewards.invoke.options import CallLimits
from rollart.rewards.invoke.pool import LocalInvoker
from rollart.rewards.payload import decode_call, encode_rewards
from rollart.rewards.registry import load_function
from rollart.types import ScoreCall

HEALTH_PATHS = frozenset({"/", "/healthz", "/_/health", "/_/ready"})
CALL_PATHS = frozenset({"/", "/invoke"})
REQUEST_S = 60.0
"""Time for a request's head, and for its body, however slowly their bytes arrive."""
MOST_CONNECTIONS = 1024
_STRUCTURED = b"application/cloudevents+json"
COLD_HEADER = "rollart-cold-start"
"""Header of the first answer of an instance."""

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = dict[bytes, bytes]


class _RefusedError(Exception):
    """A request that is answered with an error: its status and reason."""

    def __init__(self, status: int, reason: str, *, is_final: bool, is_own: bool = False) -> None:
        super().__init__(reason)
        self.status = status
        self.is_final = is_final
        self.is_own = is_own


class FunctionApp:
    """Answers score calls with an invoker's rewards."""

    def __init__(
        self,
        invoker: RewardInvoker,
        *,
        functions: Iterable[str],
        token: str = "",
        payload_bytes: int = 16 * 2**20,
        remembered: int = 1000,
        on_start: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Serve `functions` through `invoker` to callers with the token ("": to all callers).

        `remembered` answers are kept for duplicates. `on_start` is awaited when the server starts;
        the invoker is closed when it stops.
        """
        self._on_start = on_start
        self._invoker = invoker
        self._functions = frozenset(functions)
        self._token = token
        self._payload_bytes = payload_bytes
        self._remembered = remembered
        self._answers: OrderedDict[bytes, bytes] = OrderedDict()
        self._running: dict[bytes, asyncio.Task[bytes]] = {}
        self._is_cold = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection event of an ASGI server."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._serve(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                await self._invoker.close()
                await send({"type": "lifespan.shutdown.complete"})
                return
            if self._on_start is not None:
                await self._on_start()
            await send({"type": "lifespan.startup.complete"})

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, path = scope["method"], scope["path"]
        if method in ("GET", "HEAD") and path in HEALTH_PATHS:
            await _respond(send, 200, b'{"status":"ok"}')
            return
        extra: list[tuple[bytes, bytes]] = []
        try:
            if path not in CALL_PATHS:
                raise _RefusedError(404, f"{path} does not exist; POST to /", is_final=True)
            if method != "POST":
                raise _RefusedError(405, f"{method} is not allowed; POST a call", is_final=True)
            headers: Headers = dict(scope["headers"])
            self._authorize(headers)
            try:
                async with asyncio.timeout(REQUEST_S):
                    body = await self._read(headers, receive)
            except TimeoutError:
                slow = f"the call did not arrive within {REQUEST_S:g} s"
                raise _RefusedError(408, slow, is_final=False) from None
            status, answer = 200, await self._answer(headers, body)
            if self._is_cold:
                self._is_cold = False
                extra = [(COLD_HEADER.encode(), b"1")]
        except _RefusedError as refused:
            status = refused.status
            flags = {"is_final": refused.is_final, "is_own": refused.is_own}
            answer = json.dumps({"error": str(refused), **flags}).encode()
        await _respond(send, status, answer, extra)

    def _authorize(self, headers: Headers) -> None:
        wanted = f"Bearer {self._token}".encode()
        if self._token and not hmac.compare_digest(headers.get(b"authorization", b""), wanted):
            raise _RefusedError(401, "the bearer token is missing or wrong", is_final=True)

    async def _read(self, headers: Headers, receive: Receive) -> bytes:
        limit = self._payload_bytes
        too_large = _RefusedError(413, f"a call may have at most {limit} bytes", is_final=True)
        length = headers.get(b"content-length", b"0")
        if not length.isdigit() or int(length) > limit:
            raise too_large
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _RefusedError(400, "the connection closed during the call", is_final=False)
            body += message.get("body", b"")
            if len(body) > limit:
                raise too_large
            if not message.get("more_body"):
                return bytes(body)

    async def _answer(self, headers: Headers, body: bytes) -> bytes:
        if headers.get(b"content-type", b"").startswith(_STRUCTURED):
            headers, body = _open_event(headers, body)
        try:
            call = decode_call(body, limit_bytes=self._payload_bytes)
        except ScoreError as error:
            raise _RefusedError(400, str(error), is_final=True) from error
        if call.function not in self._functions:
            served = ", ".join(sorted(self._functions))
            raise _RefusedError(
                404, f"{call.function} is not served here; served: {served}", is_final=True
            )
        key = headers.get(b"idempotency-key") or headers.get(b"ce-id") or call.key.encode()
        identity = sha256(key + b"\0" + body).digest()
        if (answer := self._answers.get(identity)) is not None:
            return answer
        task = self._running.get(identity)
        if task is None:
            task = self._running[identity] = asyncio.create_task(self._score(call))
            task.add_done_callback(lambda done: self._remember(identity, done))
        try:
            # Shielded: when a caller hangs up, a second delivery may still join this call.
            return await asyncio.shield(task)
        except ScoreError as error:
            raise _RefusedError(
                500, str(error), is_final=error.is_final, is_own=error.is_own
            ) from error

    async def _score(self, call: ScoreCall) -> bytes:
        return encode_rewards(await self._invoker.invoke(call))

    def _remember(self, identity: bytes, task: asyncio.Task[bytes]) -> None:
        del self._running[identity]
        if task.cancelled() or task.exception() is not None:
            return
        self._answers[identity] = task.result()
        while len(self._answers) > self._remembered:
            self._answers.popitem(last=False)


def _open_event(headers: Headers, body: bytes) -> tuple[Headers, bytes]:
    """Return the headers and the call inside a structured CloudEvent."""
    try:
        event: Any = json.loads(body)
        data, key = event["data"], str(event["id"])
        return {b"ce-id": key.encode(), **headers}, json.dumps(data).encode()
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        reason = f"not a CloudEvent with an id and a call as data: {type(error).__name__}: {error}"
        raise _RefusedError(400, reason, is_final=True) from error


async def _respond(
    send: Send, status: int, body: bytes, extra: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *extra,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


_GRACE_S = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Which reward functions to serve, and where.

    Example:
        >>> ServeOptions(functions=("math", "my_rewards:style"), port=9000)

    """

    functions: tuple[str, ...]
    """Names of the functions; a call of any other is refused."""
    host: str = "127.0.0.1"
    port: int = 8080
    """0 takes any free port."""
    token: str = ""
    """Bearer token that callers must send; "": none."""
    scaling: Scaling = field(default_factory=lambda: Scaling(min_instances=1))
    limits: CallLimits = field(default_factory=CallLimits)

    def __post_init__(self) -> None:
        if not 0 <= self.port < 2**16:
            raise ConfigError("port", self.port, "must lie between 0 and 65535")
        for name in self.functions:
            load_function(name)


def bind(options: ServeOptions) -> socket.socket:
    """Return a socket that listens on the options' host and port."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    try:
        return socket.create_server((options.host, options.port), family=family, backlog=1024)
    except OSError as error:
        where = f"{options.host}:{options.port}"
        raise UserError(f"cannot serve on {where}: {error}; choose another --port") from error


class DeadlineProtocol(H11Protocol):
    """HTTP that disconnects a caller whose request's head does not arrive in time."""

    _deadline: asyncio.TimerHandle | None = None
    """Runs while a head is awaited; between two requests the server's idle limit is shorter."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the time of a new connection; close one too many."""
        super().connection_made(transport)
        if len(self.connections) > 2 * MOST_CONNECTIONS:
            transport.close()
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Take bytes, and look whether they complete a head or begin one."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """End with the connection."""
        if self._deadline is not None:
            self._deadline.cancel()
        super().connection_lost(exc)

    def _watch(self) -> None:
        cycle: Any = self.cycle
        is_awaited = cycle is None or cycle.response_complete
        if self._deadline is not None and not is_awaited:
            self._deadline.cancel()
            self._deadline = None
        elif self._deadline is None and is_awaited:
            self._deadline = self.loop.call_later(REQUEST_S, self.transport.close)


def serve(options: ServeOptions, listener: socket.socket) -> None:
    """Serve until the process gets a signal to stop."""
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
        http=DeadlineProtocol,
        limit_concurrency=MOST_CONNECTIONS,
    )
    uvicorn.Server(config).run(sockets=[listener])


def default_port() -> int:
    """Return the port that the environment variable PORT names, else 8080."""
    text = os.environ.get("PORT", "8080")
    if not text.isdigit():
        raise ConfigError("PORT", text, "must be a number")
    return int(text)
