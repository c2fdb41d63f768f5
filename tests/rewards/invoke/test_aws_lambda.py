import json
import sys
import zipfile
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from lambda_loopback import Loopback, loopback, sandbox, scripted
from serverless_calls import attempt, call

from rollart.errors import ConfigError, ScoreError, UserError
from rollart.rewards.invoke.aws_lambda import LambdaInvoker
from rollart.rewards.invoke.factory import open_invoker
from rollart.rewards.invoke.lambda_package import HANDLER, write_lambda_package
from rollart.rewards.invoke.options import CallLimits, InvokerOptions
from rollart.types import Reward

GOOD = {"answer": {"format": 2, "rewards": [{"value": 2.0, "parts": {}}]}, "is_cold": True}
MODULE = """
from lambda_extra import one
runs = []
def score(trajectory):
    runs.append(1)
    return len(trajectory.turns) + one() / 10
def count(trajectory):
    return float(len(runs))
def broken(trajectory):
    raise RuntimeError("no grader here")
"""


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@asynccontextmanager
async def opened(server: Loopback, **limits):
    invoker = LambdaInvoker(
        "score",
        limits=CallLimits(**limits),
        connections=2,
        region="us-east-1",
        endpoint_url=f"http://{server.address}",
    )
    try:
        yield invoker
    finally:
        await invoker.close()


async def refused(invoker: LambdaInvoker, asked) -> tuple[str, bool]:
    with pytest.raises(ScoreError) as error:
        await invoker.invoke(asked)
    return str(error.value), error.value.is_final


async def test_a_package_runs_under_the_runtime_of_aws_and_answers_through_boto3(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lambda_graders.py").write_text(MODULE)
    extra = tmp_path / "extra"
    extra.mkdir()
    (extra / "lambda_extra.py").write_text("def one():\n    return 1\n")
    monkeypatch.syspath_prepend(extra)
    names = [f"lambda_graders:{name}" for name in ("score", "count", "broken")]
    names.append("weighted")
    package = write_lambda_package(tmp_path / "out.zip", names, include=[extra])
    again = write_lambda_package(tmp_path / "again.zip", names, include=[extra])
    assert package.path.read_bytes() == again.path.read_bytes()
    root = tmp_path / "task"
    with zipfile.ZipFile(package.path) as archive:
        archive.extractall(root)
    options = InvokerOptions(
        kind="lambda", function_name="score", region="us-east-1", endpoint_url="http://127.0.0.1:1"
    )
    await open_invoker(options).close()
    with loopback() as server, sandbox(server, root, HANDLER):
        async with opened(server) as invoker:
            asked = call("lambda_graders:score", attempt("ä", "b"))
            assert await invoker.invoke(asked) == (Reward(value=2.1),)
            assert await invoker.invoke(asked) == (Reward(value=2.1),)
            assert await invoker.invoke(call("lambda_graders:count")) == (Reward(value=1.0),)
            assert await refused(invoker, call("lambda_graders:broken")) == (
                "lambda_graders:broken raised RuntimeError: no grader here",
                False,
            )
            assert await refused(invoker, call("os:getcwd")) == (
                "os:getcwd is not in this package; it has lambda_graders:broken, "
                "lambda_graders:count, lambda_graders:score, weighted",
                True,
            )
            hidden = call("a:b", terms=[{"function": "os:getcwd"}])
            words, _ = await refused(invoker, replace(hidden, function="weighted"))
            assert words.startswith("weighted: reward.function = 'os:getcwd': is not served here")
            assert invoker.stats() == {"cold_starts": 1}
        assert server.invoked == ["score"] * 6


@pytest.mark.parametrize(
    ("reply", "reason", "is_final"),
    [
        (
            scripted({"errorMessage": "Task timed out"}, x_amz_function_error="Unhandled"),
            'Lambda Unhandled: {"errorMessage": "Task timed out"}',
            False,
        ),
        (scripted([1]), "Lambda answered with no JSON object: [1]", False),
        (scripted({}), "Lambda's answer has no rewards", False),
        (
            scripted({"Message": "none"}, status=404, x_amzn_errortype="ResourceNotFoundException"),
            "Lambda refused the call: An error occurred (ResourceNotFoundException)",
            True,
        ),
        (
            scripted({"Message": "many"}, status=429, x_amzn_errortype="TooManyRequestsException"),
            "Lambda refused the call: An error occurred (TooManyRequestsException)",
            False,
        ),
        (scripted({"pad": "x" * 2000}), "answered with more than 1000 bytes", False),
    ],
)
async def test_whatever_lambda_answers_is_rewards_or_a_reason(reply, reason, is_final):
    with loopback() as server:
        async with opened(server, response_bytes=1000) as invoker:
            server.scripted.extend([reply, scripted(GOOD)])
            words, final = await refused(invoker, call("turns"))
            assert reason in words
            assert final is is_final
            assert await invoker.invoke(call("turns")) == (Reward(value=2.0),)
            assert len(server.invoked) == 2


async def test_no_endpoint_and_a_call_too_large_are_reasons():
    with loopback() as server:
        pass
    async with opened(server, payload_bytes=2000) as invoker:
        words, final = await refused(invoker, call("turns"))
        assert "Lambda gave no answer: Could not connect" in words
        assert not final
        words, final = await refused(invoker, call("turns", attempt(*"a" * 100)))
        assert "bytes, more than 2000" in words
        assert final


def test_a_function_in_a_file_and_a_missing_include_cannot_be_packed(tmp_path: Path):
    (tmp_path / "mine.py").write_text("def score(trajectory):\n    return 1.0\n")
    out = tmp_path / "out.zip"
    with pytest.raises(ConfigError, match="Lambda cannot load a path"):
        write_lambda_package(out, [f"{tmp_path}/mine.py:score"])
    with pytest.raises(UserError, match=r"--include .*missing: no such file or directory"):
        write_lambda_package(out, ["weighted"], include=[tmp_path / "missing"])
    assert not out.exists()


def test_a_whole_package_and_single_files_are_packed(tmp_path: Path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    package = tmp_path / "packed_graders"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "graders.py").write_text("def score(trajectory):\n    return 1.0\n")
    (package / "data.txt").write_text("x")
    (tmp_path / "note.txt").write_text("y")
    out = tmp_path / "out.zip"
    write_lambda_package(out, ["packed_graders.graders:score"], include=[tmp_path / "note.txt"])
    with zipfile.ZipFile(out) as archive:
        packed = archive.namelist()
        functions = json.loads(archive.read("rollart_functions.json"))
    needed = ("rollart/", "pydantic_core/", "typing_extensions.py")
    assert {name for name in needed if any(each.startswith(name) for each in packed)} == {*needed}
    names = [name for name in packed if not name.startswith(needed)]
    assert names == [
        "note.txt",
        "packed_graders/__init__.py",
        "packed_graders/data.txt",
        "packed_graders/graders.py",
        "rollart_functions.json",
    ]
    assert functions == ["packed_graders.graders:score"]
    assert "packed_graders" in sys.modules
