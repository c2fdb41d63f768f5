"""Serverless methods over HTTP: what is sent where, what is answered, and what is refused."""

import asyncio
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from rollart.cluster.worker_group import Function, Worker, register, serverless
from rollart.errors import UserError
from rollart.rewards.invoke.methods import TOKEN_VARIABLE, HttpMethods, answer
from rollart.rewards.invoke.options import CallLimits


class Scorer(Worker):
    @serverless("/score")
    @register("one")
    def score(self, text: str, scale: float) -> float:
        return len(text) * scale

    @register("one")
    def secret(self) -> str:
        return "not for everyone"


@contextmanager
def replying(reply):
    """Serve on loopback whatever `reply` makes of a request: a status and a body."""
    heard = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            heard.append((self.path, self.headers.get("Authorization"), json.loads(body)))
            status, content = reply(body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_args):
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", heard
        finally:
            server.shutdown()
            serving.join()


def invoke(url, *args, path="/score", **options):
    async def run():
        methods = HttpMethods(base=url, **options)
        try:
            return await methods(Function(url=path), "score", args)
        finally:
            await methods.close()

    return asyncio.run(run())


def test_a_method_is_run_where_it_is_served_by_who_shows_the_token(monkeypatch):
    monkeypatch.setenv(TOKEN_VARIABLE, "right")
    with replying(lambda body: (200, answer(Scorer(), body))) as (url, heard):
        assert invoke(url, "four", 0.5) == 2.0
        assert invoke("", "four", 1, path=f"{url}/elsewhere", token_env="") == 4
    assert heard == [
        ("/score", "Bearer right", {"method": "score", "args": ["four", 0.5]}),
        ("/elsewhere", None, {"method": "score", "args": ["four", 1]}),
    ]


def test_what_a_function_refuses_or_says_wrong_is_told_with_its_reason():
    replies = [(403, b'{"error": "not you"}'), (500, b"broken"), (200, b'{"results": 1}')]
    with replying(lambda _body: replies.pop(0)) as (url, _):
        for words in ("status 403: not you", "status 500: broken", "status 200: "):
            with pytest.raises(UserError, match=f"^score: /score answered with {words}"):
                invoke(url)


def test_calls_and_answers_have_a_largest_size():
    with replying(lambda _body: (200, json.dumps({"result": "x" * 300}).encode())) as (url, heard):
        with pytest.raises(UserError, match="score: the call has 333 bytes; the limit is 300"):
            invoke(url, "x" * 300, limits=CallLimits(payload_bytes=300))
        assert heard == []
        with pytest.raises(UserError, match="answered with more than 300 bytes"):
            invoke(url, limits=CallLimits(response_bytes=300))


def test_no_server_no_json_and_no_secrecy_are_one_message_each(monkeypatch):
    with pytest.raises(UserError, match=r"^score: /score failed: ConnectError"):
        invoke("http://127.0.0.1:1")
    with pytest.raises(UserError, match=r"^score: arguments must be JSON values"):
        invoke("http://127.0.0.1:1", object())
    monkeypatch.setenv(TOKEN_VARIABLE, "right")
    with pytest.raises(UserError, match=f"would send {TOKEN_VARIABLE} unencrypted: use https"):
        invoke("http://10.0.0.1")


def test_only_serverless_methods_are_answered():
    for body in (b"[]", b"nonsense", b'{"method": "score"}'):
        with pytest.raises(UserError, match="a call must be JSON such as"):
            answer(Scorer(), body)
    for name in ("secret", "__init__", "nothing"):
        with pytest.raises(UserError, match=f"'{name}' is not a serverless method of Scorer"):
            answer(Scorer(), json.dumps({"method": name, "args": []}).encode())
