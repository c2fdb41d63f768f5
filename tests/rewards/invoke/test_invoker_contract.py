import os
import zipfile
from pathlib import Path

import pytest
from checkout import SUPPORT
from contract_rewards import NAMES
from invoker_contract import keep_the_contract
from lambda_loopback import loopback, sandbox
from served_function import TOKEN, served

from rollart.rewards.invoke.aws_lambda import LambdaInvoker
from rollart.rewards.invoke.factory import open_invoker
from rollart.rewards.invoke.http import HttpInvoker
from rollart.rewards.invoke.lambda_package import HANDLER, write_lambda_package
from rollart.rewards.invoke.options import CallLimits, InvokerOptions, Reliability
from rollart.rewards.invoke.pool import LocalInvoker

FUNCTIONS = [f"contract_rewards:{name}" for name in NAMES]


async def test_local_keeps_the_contract():
    invoker = LocalInvoker()
    try:
        await keep_the_contract(invoker)
    finally:
        await invoker.close()


async def test_what_makes_invokers_reliable_keeps_the_contract():
    options = InvokerOptions(reliability=Reliability(attempts=2, backoff_s=0.001, hedge="p95"))
    invoker = open_invoker(options)
    try:
        await keep_the_contract(invoker)
    finally:
        await invoker.close()


async def test_http_keeps_the_contract(monkeypatch: pytest.MonkeyPatch):
    path = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", f"{SUPPORT}{os.pathsep}{path}")
    async with served(*FUNCTIONS) as url:
        invoker = HttpInvoker(url, token=TOKEN, limits=CallLimits(), connections=4)
        try:
            await keep_the_contract(invoker)
        finally:
            await invoker.close()


async def test_lambda_keeps_the_contract(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key")
    package = write_lambda_package(tmp_path / "out.zip", FUNCTIONS)
    with zipfile.ZipFile(package.path) as archive:
        archive.extractall(tmp_path / "task")
    with loopback() as server, sandbox(server, tmp_path / "task", HANDLER):
        invoker = LambdaInvoker(
            "score",
            limits=CallLimits(),
            connections=4,
            region="us-east-1",
            endpoint_url=f"http://{server.address}",
        )
        try:
            await keep_the_contract(invoker)
        finally:
            await invoker.close()
