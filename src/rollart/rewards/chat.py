"""Chat models for judges: an OpenAI-compatible URL, or an engine of this process.

A judge has its own limit on open questions, separate from rollout's, so neither starves the other.
Every failure to get an answer is a ScoreError, final only if retrying cannot help. Questions are
not repeated here; the invoker retries.

A process that serves rewards to a network accepts only the addresses and keys it was started with
(`ROLLART_JUDGES`), so a caller cannot make it send a key elsewhere.

`chat_through` uses an engine as a chat model. Its session ids are negative, so they never equal a
trajectory's, and each session is dropped after its answer.

A semaphore that works across event loops: at most `count` holders in this process.

An instance with several concurrent calls runs each on the event loop of its own thread, and
`asyncio.Semaphore` would limit each loop separately. Waiters are served in the order they came. A
permit given to a waiter that was cancelled meanwhile goes to the next one, so none is lost.
"""

import asyncio
import json
import os
import threading
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import count
from typing import Any, TypeVar, cast

import httpx

from rollart.errors import ConfigError, ScoreError
from rollart.ports import Generator, Renderer
from rollart.rewards.context import Ask, get_model
from rollart.rewards.invoke.options import may_carry_secrets
from rollart.rewards.registry import is_pinned
from rollart.types import Json, Request, Sampling, TrajectoryId, open_chat

_Waiter = tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]


class CrossLoopSemaphore:
    """Limits how many tasks are inside `async with` at once, in all event loops together.

    Example:
        >>> semaphore = CrossLoopSemaphore(8)
        >>> async with semaphore:
        ...     ...

    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: deque[_Waiter] = deque()
        self._lock = threading.Lock()

    async def __aenter__(self) -> None:
        loop = asyncio.get_running_loop()
        with self._lock:
            if self._free:
                self._free -= 1
                return
            waiter = loop, loop.create_future()
            self._waiting.append(waiter)
        try:
            await waiter[1]
        except asyncio.CancelledError:
            if not self._withdraw(waiter):
                # It left the queue because it got a permit, which it will not use.
                self._pass_on()
            raise

    async def __aexit__(self, *_: object) -> None:
        self._pass_on()

    def _withdraw(self, waiter: _Waiter) -> bool:
        """Remove a waiter from the queue; return whether it was still in it."""
        with self._lock:
            try:
                self._waiting.remove(waiter)
            except ValueError:
                return False
            return True

    def _pass_on(self) -> None:
        """Give the permit to the longest waiter, or keep it free."""
        with self._lock:
            if not self._waiting:
                self._free += 1
                return
            loop, permit = self._waiting.popleft()
        loop.call_soon_threadsafe(_give, permit)


def _give(permit: asyncio.Future[None]) -> None:
    if not permit.done():  # otherwise its waiter was cancelled and passes the permit on itself
        permit.set_result(None)


T = TypeVar("T")

JUDGES_VARIABLE = "ROLLART_JUDGES"
"""The environment variable that lists the judges a served function may ask, separated by spaces:
URL or URL=KEY_VARIABLE."""
_FIELD = "reward.options.judge"
_ANSWER_BYTES = 2**20
_SHOWN = 200
_TRY_AGAIN = (408, 409, 425, 429)
_semaphores: dict["Judge", CrossLoopSemaphore] = {}
_lock = threading.Lock()


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """Where and how a judge is asked; set either `base_url` or `engine`.

    Example:
        >>> Judge(
        ...     base_url="https://api.openai.com/v1",
        ...     model="gpt-4o-mini",
        ...     api_key_variable="OPENAI_API_KEY",
        ... )

    """

    base_url: str = ""
    """URL of an OpenAI-compatible server, up to and including /v1."""
    engine: str = ""
    """Name under which this process offers an engine (`context.use_model`)."""
    model: str = "judge"
    """Name of the model at the server."""
    api_key_variable: str = ""
    """Environment variable that holds the server's key, named …_API_KEY; empty: no key."""
    temperature: float = 0.0
    """Divides the logits; 0 takes the likeliest token."""
    max_tokens: int = 1024
    """Most tokens of an answer."""
    timeout_s: float = 60.0
    """Seconds an answer may take."""
    concurrency: int = 8
    """Most open questions of this process at once; others wait."""

    def __post_init__(self) -> None:
        if bool(self.base_url) == bool(self.engine):
            fix = "give one: base_url, an OpenAI-compatible URL, or engine, a name"
            raise ConfigError(f"{_FIELD}.base_url", self.base_url, fix)
        if self.base_url and not self.base_url.startswith(("http://", "https://")):
            raise ConfigError(f"{_FIELD}.base_url", self.base_url, "must begin with http")
        if self.api_key_variable and not self.api_key_variable.endswith("_API_KEY"):
            # Options may come over the network: they must not reach other secrets of this process.
            fix = "must end with _API_KEY"
            raise ConfigError(f"{_FIELD}.api_key_variable", self.api_key_variable, fix)
        is_shown = bool(self.api_key_variable and self.base_url)
        if is_shown and not may_carry_secrets(self.base_url):
            fix = f"would send {self.api_key_variable} unencrypted: use https"
            raise ConfigError(f"{_FIELD}.base_url", self.base_url, fix)
        for name in ("max_tokens", "timeout_s", "concurrency"):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{_FIELD}.{name}", getattr(self, name), "must be above 0")

    @property
    def pool(self) -> str:
        """The judge's name in error messages."""
        return f"judge {self.engine or self.base_url}"

    async def ask(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the model's answer to a conversation."""
        async with self._semaphore():
            try:
                async with asyncio.timeout(self.timeout_s):
                    answer = await (
                        self._generate(messages) if self.engine else self._post(messages)
                    )
            except TimeoutError:
                raise ScoreError(f"{self.pool}: no answer within {self.timeout_s:g} s") from None
        if not isinstance(answer, str):
            raise ScoreError(f"{self.pool}: the answer is {answer!r}, wanted a text")
        return answer

    def _semaphore(self) -> CrossLoopSemaphore:
        """Return the semaphore that limits this judge's open questions in this process."""
        with _lock:
            return _semaphores.setdefault(self, CrossLoopSemaphore(self.concurrency))

    async def _generate(self, messages: Sequence[Mapping[str, str]]) -> object:
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
            # A busy or broken server may recover; a refused request will be refused again.
            is_final = status < 500 and status not in _TRY_AGAIN
            raise ScoreError(f"{self.pool}: answered {status}: {said}", is_final=is_final)
        try:
            choice = json.loads(body)["choices"][0]
            if choice.get("finish_reason") == "length":
                raise ScoreError(
                    f"{self.pool}: the answer was cut short by max_tokens = {self.max_tokens}"
                )
            return choice["message"]["content"]
        except (ValueError, AttributeError, KeyError, IndexError, TypeError, RecursionError):
            raise ScoreError(f"{self.pool}: no chat completion in {said!r}") from None


def read_judge(options: Mapping[str, Json]) -> Judge:
    """Return the judge described by a reward's option `judge`."""
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
        fix = f"is not allowed here: add it to {JUDGES_VARIABLE} of the server"
        raise ConfigError(f"{_FIELD}.base_url", judge.base_url, fix)
    if wanted and wanted not in keys:
        fix = f"is not allowed for {url}: add {url}={wanted} to {JUDGES_VARIABLE} of the server"
        raise ConfigError(f"{_FIELD}.api_key_variable", wanted, fix)


async def ask_all(questions: Iterable[Coroutine[None, None, T]]) -> list[T]:
    """Ask questions concurrently and return their answers; the first failure cancels the rest."""
    try:
        async with asyncio.TaskGroup() as tasks:
            asked = [tasks.create_task(question) for question in questions]
    except ExceptionGroup as group:
        raise group.exceptions[0] from group
    return [task.result() for task in asked]


DOMAIN = "judge"
"""Domain of a judge's requests, so that routing can give it its own engines."""


def chat_through(generator: Generator, *, renderer: Renderer, sampling: Sampling) -> Ask:
    """Return a chat model that generates its answers with an engine."""
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
