"""The HTTP invoker: calls a reward function behind a URL.

A call is one POST of JSON with the headers of a CloudEvent. `ce-id` and `Idempotency-Key` carry the
call's key, so a server that remembers keys runs a call once, however often it arrives. Answers are
parsed strictly and only up to a size limit. A status that the same call would get again is final.
"""

import asyncio
import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import quote

import httpx

from rollart.errors import ScoreError
from rollart.rewards.invoke.options import CallLimits
from rollart.rewards.invoke.server import COLD_HEADER
from rollart.rewards.payload import decode_rewards, encode_call
from rollart.types import Reward, ScoreCall

SCORE_EVENT = "com.rollart.score"
"""The CloudEvents type of a score call."""
_PASSING = {408, 425, 429}
"""Client error statuses (timeout, too early, too many) after which a retry can succeed."""
_SHOWN = 400


class HttpInvoker:
    """Calls one function URL."""

    def __init__(
        self,
        url: str,
        *,
        token: str = "",
        token_env: str = "",
        limits: CallLimits,
        connections: int,
    ) -> None:
        """Call `url` with a bearer token over at most `connections` connections.

        `token_env` names the variable the token came from, for error messages.
        """
        self._url = url
        self._token_help = _token_help(token_env, is_set=bool(token))
        self._limits = limits
        self._cold_starts = 0
        self._client = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {token}"} if token else {},
            timeout=httpx.Timeout(limits.timeout_s),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            follow_redirects=False,
            trust_env=False,
        )

    async def invoke(self, call: ScoreCall) -> tuple[Reward, ...]:
        """Score the call's trajectories with one request."""
        payload = encode_call(call, limit_bytes=self._limits.payload_bytes)
        try:
            async with (
                asyncio.timeout(self._limits.timeout_s),
                self._client.stream(
                    "POST", self._url, content=payload, headers=_headers(call)
                ) as response,
            ):
                body = await self._read(response)
        except (TimeoutError, httpx.TimeoutException) as error:
            limit_s = self._limits.timeout_s
            message = f"{call.function}: {self._url} gave no answer within {limit_s:g} s"
            raise ScoreError(message) from error
        except httpx.HTTPError as error:
            words = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise ScoreError(f"{call.function}: {self._url} failed: {words}") from error
        if response.status_code != HTTPStatus.OK:
            raise _refusal(call, response.status_code, body, token_help=self._token_help)
        self._cold_starts += COLD_HEADER in response.headers
        return decode_rewards(body, count=len(call.trajectories))

    def stats(self) -> Mapping[str, float]:
        """Return counters and gauges since the start, by metric name."""
        return {"cold_starts": self._cold_starts}

    async def close(self) -> None:
        """Close the connections; calls still waiting fail."""
        await self._client.aclose()

    async def _read(self, response: httpx.Response) -> bytes:
        limit = self._limits.response_bytes
        body = bytearray()
        async for piece in response.aiter_bytes():
            body += piece
            if len(body) > limit:
                raise ScoreError(f"{self._url} answered with more than {limit} bytes")
        return bytes(body)


def _headers(call: ScoreCall) -> dict[str, str]:
    # Header values are ASCII; the CloudEvents binding percent-encodes everything else.
    key = quote(call.key, safe="!#$&'()*+,-./:;<=>?@[]^_`{|}~")
    return {
        "Content-Type": "application/json",
        "Idempotency-Key": key,
        "ce-id": key,
        "ce-source": "/rollart",
        "ce-specversion": "1.0",
        "ce-type": SCORE_EVENT,
    }


def _token_help(variable: str, *, is_set: bool) -> str:
    """Return what to do when the server refuses the token."""
    if not variable:
        return "no token was sent: set token_env to the environment variable that holds it"
    is_what = "differs from the server's token" if is_set else "is not set in this process"
    return f"{variable} {is_what}: set it to the token that the server printed or was started with"


def _refusal(call: ScoreCall, status: int, body: bytes, *, token_help: str) -> ScoreError:
    """Return the error for a status other than 200."""
    reason, is_final, is_own = "", 300 <= status < 500 and status not in _PASSING, False
    try:
        tree: Any = json.loads(body)
    except (ValueError, RecursionError):
        reason = body[:_SHOWN].decode(errors="replace").strip()
    else:
        if isinstance(tree, dict) and "error" in tree:
            described = cast("dict[str, object]", tree)
            reason = str(described["error"])[:_SHOWN]
            is_final = is_final or described.get("is_final") is True
            is_own = described.get("is_own") is True
    words = f": {reason}" if reason else ""
    if status == HTTPStatus.UNAUTHORIZED:
        words += f"; {token_help}"
    message = f"{call.function}: status {status}{words}"
    return ScoreError(message, is_final=is_final, is_own=is_own)
