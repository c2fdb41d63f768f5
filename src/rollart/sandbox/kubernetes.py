"""Programs as pods: a secret and a pod are made, watched to the end, read and deleted.

Speaks the cluster's REST interface over the standard library's HTTP client, a thread per request.
What the pod's log says and what the cluster says of its end become one result. Both objects are
deleted whatever happens; a pod whose owner died ends by its own deadline.
"""

import asyncio
import binascii
import contextlib
import http.client
import json
import os
import secrets
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from rollart.errors import ConfigError, SandboxError
from rollart.sandbox.cell import KILLED, classify
from rollart.sandbox.manifest import network_policy, pod, secret
from rollart.sandbox.messages import decode_words
from rollart.sandbox.options import KubernetesOptions, SandboxOptions
from rollart.types import Program, ProgramEnd, ProgramResult

ENDED = ("Succeeded", "Failed")
MOST_LOG_BYTES = 16 * 2**20
TIMEOUT_S = 30.0


class Cluster:
    """The REST interface of a cluster, as far as sandboxes need it."""

    def __init__(self, options: KubernetesOptions) -> None:
        url = options.url or _own_cluster()
        parts = urlsplit(url)
        self._host = parts.netloc
        self._is_secure = parts.scheme == "https"
        self._options = options
        if self._is_secure and not Path(options.ca_file).is_file():
            raise ConfigError("sandbox.kubernetes.ca_file", options.ca_file, "is not there")
        if not Path(options.token_file).is_file():
            raise ConfigError("sandbox.kubernetes.token_file", options.token_file, "is not there")

    def call(self, method: str, path: str, body: object = None) -> bytes:
        """Make one request; return what was answered, raise a SandboxError if it was refused."""
        connection, response = self._open(method, path, body, TIMEOUT_S)
        try:
            return response.read(MOST_LOG_BYTES)
        finally:
            connection.close()

    def watch(self, path: str, timeout_s: float) -> Iterator[Mapping[str, Any]]:
        """Give the events of a watch as they come."""
        connection, response = self._open("GET", path, None, timeout_s)
        try:
            while line := response.readline():
                yield json.loads(line)
        except TimeoutError:
            raise SandboxError(f"no end of the pod was seen within {timeout_s:.0f} s") from None
        finally:
            connection.close()

    def _open(
        self, method: str, path: str, body: object, timeout_s: float
    ) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        token = Path(self._options.token_file).read_text(encoding="ascii").strip()
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection = self._connect(timeout_s)
        try:
            content = None if body is None else json.dumps(body)
            connection.request(method, path, content, headers)
            response = connection.getresponse()
            if response.status >= 300:
                said = response.read(2000).decode(errors="replace")
                raise SandboxError(f"{method} {path}: {response.status} {said}")
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise SandboxError(f"{method} {path}: {error}") from error
        except SandboxError:
            connection.close()
            raise
        return connection, response

    def _connect(self, timeout_s: float) -> http.client.HTTPConnection:
        if not self._is_secure:
            return http.client.HTTPConnection(self._host, timeout=timeout_s)
        context = ssl.create_default_context(cafile=self._options.ca_file)
        return http.client.HTTPSConnection(self._host, timeout=timeout_s, context=context)


class KubernetesSandbox:
    """Runs each program in a pod of its own."""

    def __init__(self, options: SandboxOptions) -> None:
        self.limits = options.limits
        self._options = options.kubernetes
        self._cluster = Cluster(options.kubernetes)
        self._seats = asyncio.Semaphore(options.concurrency)
        self._base = f"/api/v1/namespaces/{quote(options.kubernetes.namespace)}"
        self._running: set[asyncio.Task[Any]] = set()
        self._has_policy = False

    def describe(self) -> Mapping[str, str]:
        """Say what holds programs here, limit by limit."""
        return {
            "user": "65534, no service account",
            "seccomp": "RuntimeDefault",
            "memory": "the pod's limit, private files included",
            "cpu": "rlimit, each process by itself; one core for all",
            "processes": "the node's limit for a pod",
            "priority": "the cluster's",
            "root": self._options.image,
        }

    async def run(self, program: Program) -> ProgramResult:
        """Run a program to its end or its limits; cancelling the await deletes its pod."""
        async with self._seats:
            task = asyncio.current_task()
            assert task is not None
            self._running.add(task)
            try:
                return await self._run(program)
            finally:
                self._running.discard(task)

    async def close(self) -> None:
        """Cancel what runs; each run deletes its own pod."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)

    async def _run(self, program: Program) -> ProgramResult:
        called_at = asyncio.get_running_loop().time()
        name = f"rollart-{secrets.token_hex(8)}"
        await self._deny_network()
        try:
            await self._create("secrets", secret(name, program, self._options))
            await self._create("pods", pod(name, program.limits, self._options))
            status = await asyncio.to_thread(self._await_end, name, program.limits.wall_s)
            log = await asyncio.to_thread(self._read_log, name)
        finally:
            await asyncio.shield(
                asyncio.gather(self._delete("pods", name), self._delete("secrets", name))
            )
        total_s = asyncio.get_running_loop().time() - called_at
        return conclude(status, log, total_s=total_s)

    async def _deny_network(self) -> None:
        """Put the policy in place before the first pod, and know that it is."""
        if self._has_policy:
            return
        policy = network_policy(self._options)
        base = f"/apis/networking.k8s.io/v1/namespaces/{quote(self._options.namespace)}"
        try:
            await asyncio.to_thread(self._cluster.call, "POST", f"{base}/networkpolicies", policy)
        except SandboxError as error:
            if ": 409 " not in str(error):
                raise
        self._has_policy = True

    async def _create(self, kind: str, manifest: Mapping[str, Any]) -> None:
        """Make an object; cancelled, only once it is there and can be deleted."""
        path = f"{self._base}/{kind}"
        making = asyncio.create_task(asyncio.to_thread(self._cluster.call, "POST", path, manifest))
        try:
            await asyncio.shield(making)
        except asyncio.CancelledError:
            while not making.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({making})
            making.exception()  # Seen: the object is deleted whether it was made or not.
            raise

    async def _delete(self, kind: str, name: str) -> None:
        """Delete an object; one that was never made is not there."""
        path = f"{self._base}/{kind}/{name}?gracePeriodSeconds=0"
        try:
            await asyncio.to_thread(self._cluster.call, "DELETE", path)
        except SandboxError as error:
            if ": 404 " not in str(error):
                raise

    def _await_end(self, name: str, wall_s: float) -> Mapping[str, Any]:
        """Watch a pod until it has ended; return its status."""
        timeout_s = self._options.start_timeout_s + wall_s + TIMEOUT_S
        selector = quote(f"metadata.name={name}")
        path = f"{self._base}/pods?watch=1&fieldSelector={selector}&timeoutSeconds={timeout_s:.0f}"
        for event in self._cluster.watch(path, timeout_s):
            status = event["object"].get("status", {})
            if event["type"] in ("DELETED", "ERROR"):
                break
            if status.get("phase") in ENDED:
                return status
        raise SandboxError(f"no end of pod {name} was seen")

    def _read_log(self, name: str) -> bytes:
        return self._cluster.call(
            "GET", f"{self._base}/pods/{name}/log?limitBytes={MOST_LOG_BYTES}"
        )


def conclude(status: Mapping[str, Any], log: bytes, *, total_s: float) -> ProgramResult:
    """Return the result from a pod's last status and its log."""
    states = [each.get("state", {}) for each in status.get("containerStatuses", [])]
    reasons = {state.get("terminated", {}).get("reason") for state in states}
    reached: ProgramEnd | None = "memory" if "OOMKilled" in reasons else None
    told = decode_words(log)
    if reached is None and not {"code", "signal", "wall"} & told.keys():
        why = status.get("reason") or status.get("message") or ", ".join(map(str, reasons))
        raise SandboxError(f"the pod ended without a word of its program: {why}")
    end, exit_code = classify(told, reached)
    wall_s = float(told.get("wall_s", total_s))
    return ProgramResult(
        end=end,
        exit_code=KILLED if reached else exit_code,
        stdout=binascii.a2b_base64(told.get("stdout", "")),
        stderr=binascii.a2b_base64(told.get("stderr", "")),
        is_cut=told.get("is_cut") == "1",
        wall_s=wall_s,
        start_s=max(0.0, total_s - wall_s),
    )


def _own_cluster() -> str:
    """Return the API server of the cluster this process runs in."""
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    if not host:
        fix = "must name the API server: this process runs in no cluster"
        raise ConfigError("sandbox.kubernetes.url", "", fix)
    return f"https://{host}:{os.environ.get('KUBERNETES_SERVICE_PORT', '443')}"
