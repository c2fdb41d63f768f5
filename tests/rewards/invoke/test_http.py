import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from served_function import TOKEN, answering, response, served
from serverless_calls import FILE, attempt, call

from rollart.errors import ScoreError
from rollart.rewards.invoke.http import HttpInvoker
from rollart.rewards.invoke.options import CallLimits
from rollart.rewards.payload import encode_call
from rollart.types import Json, Reward


@asynccontextmanager
async def opened(url: str, *, token: str = TOKEN, **limits):
    invoker = HttpInvoker(
        url, token=token, token_env="MY_TOKEN", limits=CallLimits(**limits), connections=4
    )
    try:
        yield invoker
    finally:
        await invoker.close()


async def is_own(invoker: HttpInvoker, function: str) -> bool:
    with pytest.raises(ScoreError) as error:
        await invoker.invoke(call(function))
    return error.value.is_own


async def refused(invoker: HttpInvoker, asked) -> tuple[str, bool]:
    with pytest.raises(ScoreError) as error:
        await invoker.invoke(asked)
    return str(error.value), error.value.is_final


async def test_a_served_function_scores_and_its_failures_keep_their_reasons(tmp_path: Path):
    names = ("parted", "ranks", "raises", "not_a_number", "leaves", "counted", "never_returns")
    functions = [f"{FILE}:{name}" for name in names]
    log = tmp_path / "log"
    async with (
        served(*functions, arguments=("--timeout-s", "5")) as url,
        opened(url) as invoker,
        opened(url, token="wrong") as stranger,
    ):
        assert await invoker.invoke(call("parted", key="Schlüssel 1")) == (
            Reward(value=0.1 + 0.2, parts={"a": 0.1, "b": 0.2}),
        )
        group = call("ranks", attempt("a"), attempt("b"), is_group=True)
        assert await invoker.invoke(group) == (Reward(value=0.0), Reward(value=1.0))
        assert invoker.stats() == {"cold_starts": 1}

        assert await refused(invoker, call("raises")) == (
            f"{FILE}:raises: status 500: {FILE}:raises raised RuntimeError: no grader here",
            False,
        )
        assert await is_own(invoker, "raises")
        assert not await is_own(invoker, "leaves")
        reason, is_final = await refused(invoker, call("not_a_number"))
        assert "status 500" in reason
        assert "returned nan" in reason
        assert is_final
        reason, is_final = await refused(invoker, call("leaves"))
        assert "its instance exited with code 7" in reason
        assert not is_final
        reason, is_final = await refused(invoker, call("never_returns"))
        assert "no answer within 5 s; its instance was killed" in reason
        assert not is_final
        reason, is_final = await refused(invoker, call("turns"))
        assert "status 404: " in reason
        assert "turns is not served here" in reason
        assert is_final
        reason, is_final = await refused(stranger, call("parted"))
        assert (reason.partition(": ")[2], is_final) == (
            "status 401: the bearer token is missing or wrong; MY_TOKEN differs from the server's "
            "token: set it to the token that the server printed or was started with",
            True,
        )

        twice = call("counted", log=str(log), seconds=0.2)
        assert (
            await asyncio.gather(*(invoker.invoke(twice) for _ in range(3)))
            == [(Reward(value=1.0),)] * 3
        )
        assert await invoker.invoke(twice) == (Reward(value=1.0),)
        assert log.read_text() == "1\n"


async def test_a_server_keeps_to_the_conventions_of_function_platforms():
    authorized = {"Authorization": f"Bearer {TOKEN}"}
    async with served(f"{FILE}:turns") as url, httpx.AsyncClient(base_url=url) as client:
        for path in ("/", "/healthz", "/_/health", "/_/ready"):
            health = await client.get(path)
            assert (health.status_code, health.json()) == (200, {"status": "ok"})
        body = encode_call(call("turns"))
        for path in ("/", "/invoke"):
            answer = await client.post(path, content=body, headers=authorized)
            assert answer.json() == {"format": 2, "rewards": [{"value": 1.0, "parts": {}}]}
        structured = {**authorized, "Content-Type": "application/cloudevents+json"}
        event = {"specversion": "1.0", "id": "7", "type": "rollart.score", "source": "/mine"}
        told = json.dumps({**event, "data": json.loads(body)})
        answer = await client.post("/", content=told, headers=structured)
        assert answer.json() == {"format": 2, "rewards": [{"value": 1.0, "parts": {}}]}
        refusal = await client.post("/", content=json.dumps(event), headers=structured)
        assert (refusal.status_code, refusal.json()["is_final"]) == (400, True)
        assert "not a CloudEvent with an id and a call as data" in refusal.json()["error"]
        statuses = [
            (await client.post("/", content=body)).status_code,
            (await client.post("/", content=b"{", headers=authorized)).status_code,
            (await client.post("/other", content=body, headers=authorized)).status_code,
            (await client.put("/", content=body, headers=authorized)).status_code,
        ]
        assert statuses == [401, 400, 404, 405]

        async def pieces():
            for _ in range(17):
                yield b" " * 2**20

        large = await client.post("/", content=pieces(), headers=authorized)
        assert (large.status_code, large.json()["error"]) == (
            413,
            "a call may have at most 16777216 bytes",
        )


@pytest.mark.parametrize(
    ("status", "body", "reason", "is_final"),
    [
        (500, b"oops", "status 500: oops", False),
        (503, b"", "status 503", False),
        (429, b"slow down", "status 429: slow down", False),
        (403, b"<html>no</html>", "status 403: <html>no</html>", True),
        (302, b"", "status 302", True),
        (500, json.dumps({"error": "bad", "is_final": True}).encode(), "status 500: bad", True),
        (500, b"[1]", "status 500", False),
    ],
)
async def test_a_status_is_a_reason(status, body, reason, is_final):
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response(status, body))
        await writer.drain()

    async with answering(answer) as url, opened(url) as invoker:
        words, final = await refused(invoker, call("turns"))
    assert (words.partition(": ")[2], final) == (reason, is_final)


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("MY_TOKEN", "MY_TOKEN is not set in this process: set it to the token that the server"),
        ("", "no token was sent: set token_env"),
    ],
)
async def test_a_token_that_is_missing_is_named(variable, words):
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response(401, b"no"))
        await writer.drain()

    async with answering(answer) as url:
        invoker = HttpInvoker(url, token_env=variable, limits=CallLimits(), connections=1)
        reason, is_final = await refused(invoker, call("turns"))
        await invoker.close()
    assert f"status 401: no; {words}" in reason
    assert is_final


async def test_nonsense_is_a_reason():
    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response(200, b'{"format": 2, "rewards": [{"value": NaN, "parts": {}}]}'))
        await writer.drain()

    async with answering(answer) as url, opened(url) as invoker:
        words, final = await refused(invoker, call("turns"))
    assert words == "an answer that cannot be read: 'NaN' is not a finite number"
    assert not final


async def test_a_dropped_connection_a_silence_a_flood_and_no_server_are_reasons():
    async def drop(reader, writer):
        await reader.readuntil(b"\r\n\r\n")

    async with answering(drop) as url, opened(url) as invoker:
        words, final = await refused(invoker, call("turns"))
        assert "failed: RemoteProtocolError" in words
        assert not final
    async with opened(url) as invoker:
        words, final = await refused(invoker, call("turns"))
        assert "failed: ConnectError" in words
        assert not final

    async def drip(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n")
        for _ in range(100):
            writer.write(b" ")
            await asyncio.sleep(0.05)

    async with answering(drip) as url, opened(url, timeout_s=0.2) as invoker:
        words, final = await refused(invoker, call("turns"))
        assert "gave no answer within 0.2 s" in words
        assert not final

    async def flood(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response(200, b" " * 5000))
        await writer.drain()

    async with answering(flood) as url, opened(url, response_bytes=1000) as invoker:
        words, _ = await refused(invoker, call("turns"))
        assert words.endswith("answered with more than 1000 bytes")


async def test_a_call_too_large_is_not_sent():
    async with opened("http://127.0.0.1:1/", payload_bytes=100) as invoker:
        words, final = await refused(invoker, call("turns"))
    assert "bytes, more than 100" in words
    assert final


async def test_what_a_served_function_adds_up_must_be_served_too(tmp_path: Path):
    mark = tmp_path / "mark"
    served_term: Json = {"function": f"{FILE}:turns", "weight": 2.0}
    counted: Json = {"function": f"{FILE}:counted", "options": {"log": str(mark)}}
    nested: Json = {"function": "weighted", "options": {"terms": [counted]}}
    async with served("weighted", f"{FILE}:turns") as url, opened(url) as invoker:
        right = call("weighted", terms=[served_term])
        right = replace(right, function="weighted")
        assert await invoker.invoke(right) == (Reward(value=2.0, parts={"turns": 1.0}),)
        for terms in ([served_term, counted], [nested]):
            asked = replace(right, options={"terms": terms}, key=f"{terms}")
            reason, is_final = await refused(invoker, asked)
            known = f"{FILE}:turns, weighted"
            assert f"'{FILE}:counted': is not served here; this process serves {known}" in reason
            assert is_final
    assert not mark.exists()
