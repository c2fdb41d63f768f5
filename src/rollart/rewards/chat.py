"""Asking a chat model: behind an OpenAI-compatible URL, or an engine this process offers.

A judge has its own place to ask and its own limit on how many questions are open at once, apart
from rollout's, so that neither starves the other. Whatever keeps an answer from coming is a
ScoreError; it is final only if asking again is vain. Nothing is asked twice here: retries are the
invoker's. In a process that answers a network, whoever calls may name only the addresses and keys
it was started with (`ROLLART_JUDGES`): no key goes where its owner did not send it.

An engine as a chat model for judges: text to token ids and back.

Its sessions are negative, so they meet no trajectory's, and are forgotten at once.
"""

import asyncio
import json
import os
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import count
from typing import Any, TypeVar, cast

import httpx

from rollart.errors import ConfigError, ScoreError
from rollart.ports import Generator, Renderer
from rollart.rewards.addresses import may_carry_secrets
from rollart.rewards.context import Ask, get_model
from rollart.rewards.registry import is_pinned
from rollart.rewards.semaphore import CrossLoopSemaphore
from rollart.types import Json, Request, Sampling, TrajectoryId, open_chat

T = TypeVar("T")

JUDGES_VARIABLE = "ROLLART_JUDGES"
"""The environment variable that names what a served function may ask: URL or URL=KEY_VARIABLE,
with spaces between."""
_FIELD = "reward.options.judge"
_ANSWER_BYTES = 2**20
_SHOWN = 200
_TRY_AGAIN = (408, 409, 425, 429)
_seats: dict["Judge", CrossLoopSemaphore] = {}
_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Where a judge is asked, and how; one of `base_url` and `engine` says where."""

    base_url: str = ""
    """An OpenAI-compatible server, up to and with /v1."""
    engine: str = ""
    """The name under which this process offers an engine (`context.use_model`)."""
    model: str = "judge"
    """The model's name at the server."""
    api_key_variable: str = ""
    """The environment variable that holds the server's key, named …_API_KEY; empty: no key."""
    temperature: float = 0.0
    """Divides the logits; 0 takes the likeliest token."""
    max_tokens: int = 1024
    """Most tokens of an answer."""
    timeout_s: float = 60.0
    """Seconds an answer may take."""
    concurrency: int = 8
    """Questions that are open at once in this process; others wait."""

    def __post_init__(self) -> None:
        if bool(self.base_url) == bool(self.engine):
            fix = "give one: base_url, an OpenAI-compatible URL, or engine, a name"
            raise ConfigError(f"{_FIELD}.base_url", self.base_url, fix)
        if self.base_url and not self.base_url.startswith(("http://", "https://")):
            raise ConfigError(f"{_FIELD}.base_url", self.base_url, "must begin with http")
        if self.api_key_variable and not self.api_key_variable.endswith("_API_KEY"):
            # Options may come over the network: no other secret of this process can be asked for.
            fix = "must end with _API_KEY"
            raise ConfigError(f"{_FIELD}.api_key_variable", self.api_key_variable, fix)
        is_shown = bool(self.api_key_variable and self.base_url)
        if is_shown and not may_carry_secrets(self.base_url):
            fix = f"would carry {self.api_key_variable} in the clear: use https"
            raise ConfigError(f"{_FIELD}.base_url", self.base_url, fix)
        for name in ("max_tokens", "timeout_s", "concurrency"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{_FIELD}.{name}", getattr(self, name), "must be above 0")

    @property
    def pool(self) -> str:
        """The pool it is asked in, as reasons name it."""
        return f"judge {self.engine or self.base_url}"

    async def ask(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the model's answer to a conversation."""
        async with self._seats():
            try:
                async with asyncio.timeout(self.timeout_s):
                    answer = await (self._say(messages) if self.engine else self._post(messages))
            except TimeoutError:
                raise ScoreError(f"{self.pool}: no answer within {self.timeout_s:g} s") from None
        if not isinstance(answer, str):
            raise ScoreError(f"{self.pool}: the answer is {answer!r}, wanted a text")
        return answer

    def _seats(self) -> CrossLoopSemaphore:
        """Return what bounds the open questions of this judge in this process."""
        with _lock:
            return _seats.setdefault(self, CrossLoopSemaphore(self.concurrency))

    async def _say(self, messages: Sequence[Mapping[str, str]]) -> object:
        return await get_model(self.engine)(messages)

    async def _post(self, messages: Sequence[Mapping[str, str]]) -> object:
        body = {
            "model": self.model,
            "messages": [dict(message) for message in messages],
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
        }
        url = f"{self.base_url.rstrip('/')}/chat/completions"
        try:
            async with (
                httpx.AsyncClient(timeout=self.timeout_s) as client,
                client.stream("POST", url, json=body, headers=self._headers()) as response,
            ):
                return self._content(response.status_code, await self._read(response))
        except httpx.HTTPError as error:
            reason = f"{type(error).__name__}: {error}".removesuffix(": ")
            raise ScoreError(f"{self.pool}: {reason}") from error

    def _headers(self) -> dict[str, str]:
        variable = self.api_key_variable
        if not variable:
            return {}
        if variable not in os.environ:
            message = f"{self.pool}: the environment variable {variable} is not set"
            raise ScoreError(message, is_final=True)
        return {"Authorization": f"Bearer {os.environ[variable]}"}

    async def _read(self, response: httpx.Response) -> bytes:
        body = b""
        async for chunk in response.aiter_bytes():
            body += chunk
            if len(body) > _ANSWER_BYTES:
                raise ScoreError(f"{self.pool}: an answer of more than {_ANSWER_BYTES} bytes")
        return body

    def _content(self, status: int, body: bytes) -> object:
        said = body[:_SHOWN].decode(errors="replace")
        if status != 200:
            # Busy and broken servers may recover; what they refuse they will refuse again.
            is_final = status < 500 and status not in _TRY_AGAIN
            raise ScoreError(f"{self.pool}: answered {status}: {said}", is_final=is_final)
        try:
            choice = json.loads(body)["choices"][0]
            if choice.get("finish_reason") == "length":
                raise ScoreError(f"{self.pool}: cut short by max_tokens = {self.max_tokens}")
            return choice["message"]["content"]
        except (ValueError, AttributeError, KeyError, IndexError, TypeError, RecursionError):
            raise ScoreError(f"{self.pool}: no chat completion in {said!r}") from None


def read_judge(options: Mapping[str, Json]) -> Judge:
    """Return the judge that an option describes."""
    kinds = {field.name: type(field.default) for field in fields(Judge)}
    for name, value in options.items():
        kind = kinds.get(name)
        is_number = kind is float and type(value) in (int, float)
        if kind is None or not (is_number or type(value) is kind):
            fix = f"a judge has {', '.join(f'{n} ({k.__name__})' for n, k in kinds.items())}"
            raise ConfigError(f"{_FIELD}.{name}", value, fix)
    judge = Judge(**cast("dict[str, Any]", dict(options)))
    if is_pinned() and judge.base_url:
        _check_allowed(judge)
    return judge


def _check_allowed(judge: Judge) -> None:
    """Refuse an address, or a key for it, that this process was not started with."""
    url, wanted = judge.base_url.rstrip("/"), judge.api_key_variable
    entries = [entry.partition("=") for entry in os.environ.get(JUDGES_VARIABLE, "").split()]
    keys = {key for address, _, key in entries if address.rstrip("/") == url}
    if not keys:
        fix = f"is not asked from here: the server's {JUDGES_VARIABLE} must name it"
        raise ConfigError(f"{_FIELD}.base_url", judge.base_url, fix)
    if wanted and wanted not in keys:
        fix = f"is not for {url}: the server's {JUDGES_VARIABLE} must say {url}={wanted}"
        raise ConfigError(f"{_FIELD}.api_key_variable", wanted, fix)


async def ask_all(questions: Iterable[Coroutine[None, None, T]]) -> list[T]:
    """Return the answers to questions asked together; the first that fails ends the others."""
    try:
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(question) for question in questions]
    except ExceptionGroup as group:
        raise group.exceptions[0] from group
    return [task.result() for task in asked]


DOMAIN = "judge"
"""The domain its requests are of: routing can give it engines of its own."""


def chat_through(generator: Generator, *, renderer: Renderer, sampling: Sampling) -> Ask:
    """Return a chat model that answers through an engine."""
    numbers = count(1)

    async def ask(messages: Sequence[Mapping[str, str]]) -> str:
        texts = {message["role"]: message["content"] for message in messages}
        number = next(numbers)
        session = TrajectoryId(-number)
        request = Request(
            session=session,
            turn=0,
            domain=DOMAIN,
            tokens=renderer.start(open_chat(texts.get("system", ""), texts["user"])),
            sampling=sampling,
            stop=renderer.stop,
            seed=number,
        )
        try:
            completion = await generator.generate(request)
        finally:
            generator.forget(session)
        if completion.finish != "stop":
            raise ScoreError(f"the judge's answer was cut short: {completion.finish}")
        return renderer.decode(completion.tokens)

    return ask
