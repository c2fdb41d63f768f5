"""The Lambda invoker: calls a reward function deployed to AWS Lambda, through boto3.

Each delivery is one synchronous invocation. boto3's own retries are off, because `ReliableInvoker`
retries for every kind of invoker. boto3 blocks, so a delivery occupies a thread until it is
answered or times out, even if its caller was cancelled.
"""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from rollart.errors import ScoreError
from rollart.rewards.invoke.options import CallLimits
from rollart.rewards.payload import decode_rewards, encode_call
from rollart.types import Reward, ScoreCall

_FINAL = {
    "AccessDeniedException",
    "InvalidParameterValueException",
    "InvalidRequestContentException",
    "InvalidSignatureException",
    "RequestTooLargeException",
    "ResourceNotFoundException",
    "UnrecognizedClientException",
}
"""Error codes that a second delivery would get too."""
_SHOWN = 400
_CONNECT_S = 10.0


class LambdaInvoker:
    """Calls one deployed function."""

    def __init__(
        self,
        function_name: str,
        *,
        limits: CallLimits,
        connections: int,
        region: str = "",
        endpoint_url: str = "",
    ) -> None:
        """Call the function with this name or ARN, at most `connections` times at once."""
        self._function_name = function_name
        self._limits = limits
        self._cold_starts = 0
        self._threads = ThreadPoolExecutor(connections, thread_name_prefix="lambda")
        self._client: Any = boto3.client(
            "lambda",
            region_name=region or None,
            endpoint_url=endpoint_url or None,
            config=Config(
                connect_timeout=min(_CONNECT_S, limits.timeout_s),
                read_timeout=limits.timeout_s,
                retries={"total_max_attempts": 1},
                max_pool_connections=connections,
            ),
        )

    async def invoke(self, call: ScoreCall) -> tuple[Reward, ...]:
        """Score the call's trajectories with one invocation."""
        payload = encode_call(call, limit_bytes=self._limits.payload_bytes)
        loop = asyncio.get_running_loop()
        answer = await loop.run_in_executor(self._threads, self._request, call.function, payload)
        return decode_rewards(answer, count=len(call.trajectories))

    def stats(self) -> Mapping[str, float]:
        """Return counters and gauges since the start, by metric name."""
        return {"cold_starts": self._cold_starts}

    async def close(self) -> None:
        """Close connections and threads; calls still waiting fail or time out."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    def _request(self, function: str, payload: bytes) -> bytes:
        limit = self._limits.response_bytes
        try:
            response = self._client.invoke(
                FunctionName=self._function_name,
                InvocationType="RequestResponse",
                Payload=payload,
            )
            with contextlib.closing(response["Payload"]) as stream:
                body: bytes = stream.read(limit + 1)
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            message = f"{function}: Lambda refused the call: {error}"
            raise ScoreError(message, is_final=code in _FINAL) from error
        except BotoCoreError as error:
            raise ScoreError(f"{function}: Lambda gave no answer: {error}") from error
        if len(body) > limit:
            raise ScoreError(f"{function}: Lambda answered with more than {limit} bytes")
        return self._answer(function, body, response.get("FunctionError"))

    def _answer(self, function: str, body: bytes, failed: str | None) -> bytes:
        """Return the encoded rewards of Lambda's answer."""
        try:
            tree: Any = json.loads(body)
        except (ValueError, RecursionError):
            tree = None
        if failed or not isinstance(tree, dict):
            words = body[:_SHOWN].decode(errors="replace")
            raise ScoreError(
                f"{function}: Lambda {failed or 'answered with no JSON object'}: {words}"
            )
        answer = cast("dict[str, Any]", tree)
        self._cold_starts += answer.get("is_cold") is True
        if "answer" not in answer:
            message = str(answer.get("error", "Lambda's answer has no rewards"))
            raise ScoreError(
                message,
                is_final=answer.get("is_final") is True,
                is_own=answer.get("is_own") is True,
            )
        return json.dumps(answer["answer"]).encode()
