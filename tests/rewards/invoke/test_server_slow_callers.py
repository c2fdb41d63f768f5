"""Callers that send their request slowly, or never, and calls that are nested without end."""

import asyncio
import json

import pytest
import uvicorn
from uvicorn.server import ServerState

from rollart.rewards.invoke import server
from rollart.rewards.invoke.server import DeadlineProtocol, FunctionApp


class Nobody:
    """An invoker that is never asked."""

    async def invoke(self, _call):
        raise AssertionError("nothing was to be scored")

    async def close(self):
        pass


@pytest.fixture
def limit_s(monkeypatch) -> float:
    monkeypatch.setattr(server, "REQUEST_S", 0.3)
    return 0.3


async def opened(most: int | None = None):
    """Return a listening server and its address."""
    app = FunctionApp(Nobody(), functions=["math"])
    config = uvicorn.Config(
        app, http=DeadlineProtocol, lifespan="off", log_level="warning", limit_concurrency=most
    )
    config.load()
    state = ServerState()
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(
        lambda: DeadlineProtocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    return listening, listening.sockets[0].getsockname()


@pytest.mark.parametrize("head", [b"", b"POST / HT", b"POST / HTTP/1.1\r\nhost: x\r\n"])
async def test_a_head_that_does_not_arrive_in_time_ends_the_connection(limit_s, head):
    listening, address = await opened()
    reader, writer = await asyncio.open_connection(*address)
    writer.write(head)
    assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()
    listening.close()


async def test_a_second_head_has_its_own_time_and_a_quick_caller_notices_nothing(limit_s):
    listening, address = await opened()
    reader, writer = await asyncio.open_connection(*address)
    for _ in range(3):
        writer.write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = await asyncio.wait_for(reader.readuntil(b'{"status":"ok"}'), 60)
        assert answer.startswith(b"HTTP/1.1 200")
        await asyncio.sleep(limit_s / 3)
    writer.write(b"GET /hea")
    assert await asyncio.wait_for(reader.read(), 60) == b""
    writer.close()
    listening.close()


async def test_a_body_that_does_not_arrive_in_time_is_answered_with_408(limit_s):
    listening, address = await opened()
    reader, writer = await asyncio.open_connection(*address)
    writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
    answer = await asyncio.wait_for(reader.readuntil(b"}"), 60)
    assert answer.startswith(b"HTTP/1.1 408")
    assert b"the call did not arrive within 0.3 s" in answer
    writer.close()
    listening.close()


async def test_one_connection_too_many_is_turned_away(monkeypatch):
    monkeypatch.setattr(server, "MOST_CONNECTIONS", 1)
    listening, address = await opened(most=1)
    held = [await asyncio.open_connection(*address) for _ in range(2)]
    reader, writer = await asyncio.open_connection(*address)
    assert await asyncio.wait_for(reader.read(), 60) == b""
    held[0][1].write(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (await asyncio.wait_for(held[0][0].readline(), 60)).startswith(b"HTTP/1.1 503")
    for _, each in (*held, (reader, writer)):
        each.close()
    listening.close()


@pytest.mark.parametrize("kind", [b"application/json", b"application/cloudevents+json"])
async def test_a_call_nested_too_deeply_is_a_plain_refusal(kind):
    listening, address = await opened()
    nested = b'{"id":"1","data":' + b"[" * 50_000 + b"]" * 50_000 + b"}"
    reader, writer = await asyncio.open_connection(*address)
    writer.write(
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b"
        % (kind, len(nested), nested)
    )
    assert (await asyncio.wait_for(reader.readline(), 60)).startswith(b"HTTP/1.1 400")
    while (await reader.readline()).strip():
        pass
    answer = json.loads(await reader.readuntil(b"}"))
    assert answer["is_final"] is True
    writer.close()
    listening.close()
