"""A worker's serverless methods over HTTP: the client and the server side.

    Cluster.call ── POST {"method": "score", "args": ["text"]} ──► answer(worker, body)
                 ◄── {"result": 0.5} ──

`HttpMethods` is the `invoke` of a `Cluster`. Requests and answers are JSON of limited size. The
token comes from the environment and is sent only over https or to this machine.
"""

import asyncio
import json
import os
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, cast

import httpx

from rollart.cluster.worker_group import Function, Registered
from rollart.errors import UserError
from rollart.rewards.invoke.options import CallLimits, may_carry_secrets
from rollart.types import Json

TOKEN_VARIABLE = "ROLLART_FUNCTION_TOKEN"  # noqa: S105 - the name of it, not a token
_SHOWN = 400


class HttpMethods:
    """Calls methods at their URLs."""

    def __init__(
        self, *, base: str = "", token_env: str = TOKEN_VARIABLE, limits: CallLimits | None = None
    ) -> None:
        """Call URLs relative to `base`, with the token in the variable `token_env` ("": none)."""
        self._limits = limits or CallLimits()
        self._token_env = token_env
        self._client = httpx.AsyncClient(
            base_url=base,
            timeout=httpx.Timeout(self._limits.timeout_s),
            follow_redirects=False,
            trust_env=False,
        )

    async def __call__(self, function: Function, name: str, args: Sequence[Json]) -> Json:
        """Run a method at its URL and return its result."""
        try:
            body = json.dumps({"method": name, "args": list(args)}).encode()
        except (TypeError, ValueError) as error:
            raise UserError(f"{name}: arguments must be JSON values: {error}") from error
        if len(body) > self._limits.payload_bytes:
            limit = self._limits.payload_bytes
            raise UserError(f"{name}: the call has {len(body)} bytes; the limit is {limit}")
        try:
            request = self._client.build_request("POST", function.url, content=body)
            self._sign(request, name)
            async with asyncio.timeout(self._limits.timeout_s):
                status, answered = await self._send(request)
        except (TimeoutError, httpx.TimeoutException) as error:
            limit_s = self._limits.timeout_s
            message = f"{name}: {function.url} gave no answer within {limit_s:g} s"
            raise UserError(message) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            words = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise UserError(f"{name}: {function.url} failed: {words}") from error
        return _read(f"{name}: {function.url}", status, answered)

    async def close(self) -> None:
        """Close the connections; calls still waiting fail."""
        await self._client.aclose()

    def _sign(self, request: httpx.Request, name: str) -> None:
        request.headers["Content-Type"] = "application/json"
        token = os.environ.get(self._token_env, "") if self._token_env else ""
        if token and not may_carry_secrets(str(request.url)):
            raise UserError(
                f"{name}: {request.url} would send {self._token_env} unencrypted: use https, or "
                'set token_env = ""'
            )
        if token:
            request.headers["Authorization"] = f"Bearer {token}"

    async def _send(self, request: httpx.Request) -> tuple[int, bytes]:
        response = await self._client.send(request, stream=True)
        body = bytearray()
        try:
            async for piece in response.aiter_bytes():
                body += piece
                if len(body) > self._limits.response_bytes:
                    limit = self._limits.response_bytes
                    raise UserError(f"{request.url} answered with more than {limit} bytes")
        finally:
            await response.aclose()
        return response.status_code, bytes(body)


def answer(worker: object, body: bytes) -> bytes:
    """Run a worker's method and return its encoded result; raise UserError if it is not served."""
    try:
        call: Any = json.loads(body)
        name, args = str(call["method"]), list(call["args"])
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        example = '{"method": "score", "args": ["text"]}'
        raise UserError(f"a call must be JSON such as {example}") from error
    method = getattr(type(worker), name, None)
    if not isinstance(method, Registered) or method.function is None:
        raise UserError(f"{name!r} is not a serverless method of {type(worker).__name__}")
    return json.dumps({"result": getattr(worker, name)(*args)}).encode()


def _read(what: str, status: int, body: bytes) -> Json:
    """Return the result in an answer."""
    try:
        tree: Any = json.loads(body)
    except (ValueError, RecursionError):
        tree = None
    if status == HTTPStatus.OK and isinstance(tree, dict) and "result" in tree:
        return cast("dict[str, Json]", tree)["result"]
    error = cast("dict[str, object]", tree).get("error") if isinstance(tree, dict) else None
    words = str(error) if error is not None else body.decode(errors="replace").strip()
    raise UserError(f"{what} answered with status {status}: {words[:_SHOWN]}")
