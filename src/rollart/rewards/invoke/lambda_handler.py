"""The handler that AWS Lambda calls: `rollart.rewards.invoke.lambda_handler.handler`.

The event is a call encoded by `payload.encode_call`; the answer holds its rewards or an error.
Failures of a function are returned as values, so an error that AWS reports is always AWS's own.
Only functions listed in the package are run. A duplicate event that reaches the same process is
answered from memory.
"""

import asyncio
import json
import os
from collections import OrderedDict
from hashlib import sha256
from pathlib import Path
from typing import Any

from rollart.errors import ScoreError
from rollart.rewards.payload import decode_call, encode_rewards
from rollart.rewards.registry import pin
from rollart.rewards.scoring import score

FUNCTIONS_FILE = "rollart_functions.json"
"""File at a package's root that lists the functions it may run."""
EVENT_BYTES = 6 * 2**20
"""Most bytes of an event: AWS's limit for synchronous calls."""
_REMEMBERED = 1000


class _Sandbox:
    """State that lives as long as the process that AWS keeps warm."""

    def __init__(self) -> None:
        root = Path(os.environ.get("LAMBDA_TASK_ROOT", "."))
        self._functions = frozenset(json.loads((root / FUNCTIONS_FILE).read_bytes()))
        pin(self._functions)
        self._runner = asyncio.Runner()
        self._answers: OrderedDict[bytes, Any] = OrderedDict()
        self._is_cold = True

    def answer(self, event: object) -> dict[str, Any]:
        """Return the answer to an event."""
        is_cold, self._is_cold = self._is_cold, False
        body = json.dumps(event, ensure_ascii=False).encode()
        identity = sha256(body).digest()
        try:
            if identity not in self._answers:
                self._answers[identity] = self._score(body)
        except ScoreError as error:
            flags = {"is_final": error.is_final, "is_own": error.is_own}
            return {"error": str(error), **flags, "is_cold": is_cold}
        while len(self._answers) > _REMEMBERED:
            self._answers.popitem(last=False)
        return {"answer": self._answers[identity], "is_cold": is_cold}

    def _score(self, body: bytes) -> object:
        call = decode_call(body, limit_bytes=EVENT_BYTES)
        if call.function not in self._functions:
            packed = ", ".join(sorted(self._functions))
            message = f"{call.function} is not in this package; it has {packed}"
            raise ScoreError(message, is_final=True)
        return json.loads(encode_rewards(self._runner.run(score(call))))


_sandboxes: list[_Sandbox] = []


def handler(event: object, _context: object) -> dict[str, Any]:
    """Answer one event."""
    if not _sandboxes:
        _sandboxes.append(_Sandbox())
    return _sandboxes[0].answer(event)
