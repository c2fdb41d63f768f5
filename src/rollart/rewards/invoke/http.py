"""The http invoker: a reward function behind a URL, wherever it is deployed.

A call is one POST of JSON with the headers of a CloudEvent; `ce-id` and `Idempotency-Key` carry the
key, so a function that remembers keys runs a call once however often it arrives. What is answered
is read strictly and only up to a limit. A status that says the same call would fail again is final.
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
"""Refusals that are not about this call: too early, too slow, too many."""
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
        """Take the URL, its bearer token, the variable that is from and how many connections
        may be open at once.
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
        """Score the call's trajectories: one request."""
        payload = encode_call(call)
        limit = self._limits.payload_bytes
        if len(payload) > limit:
            message = f"{call.function}: a call of {len(payload)} bytes, more than {limit}"
            raise ScoreError(message, is_final=True)
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
    # Header values are ASCII; whatever else a key holds is written as the CloudEvents binding says.
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
    """Say what to do when the server refuses the token."""
    if not variable:
        return "none is sent: name in token_env the environment variable that holds it"
    is_what = "is not the server's" if is_set else "is not set where this runs"
    return f"{variable} {is_what}: set it to the token that the server printed or was started with"


def _refusal(call: ScoreCall, status: int, body: bytes, *, token_help: str) -> ScoreError:
    """Return the error that a status other than 200 stands for."""
    reason, is_final, is_own = "", 300 <= status < 500 and status not in _PASSING, False
    try:
        tree: Any = json.loads(body)
    except ValueError:
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
