"""Kubernetes sandboxes: each program runs in a pod of its own, deleted when it has ended.

A secret carries `runner.py` and the program's message into the pod. The pod runs as an
unprivileged user without service account token or capabilities, on a read-only root with a small
private /tmp and its own limits, and is never restarted. A NetworkPolicy of the namespace blocks
all traffic. The result combines the pod's log with the status the cluster reports.

Pod and secret are deleted in a `finally`, so neither outlives its run; if this process is killed,
the pod's own deadline ends it. Requests use the standard library's HTTP client in threads.
"""

import asyncio
import base64
import binascii
import contextlib
import http.client
import json
import math
import os
import secrets
import ssl
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from rollart.errors import ConfigError, SandboxError
from rollart.ports import Talk
from rollart.sandbox.messages import Setting, decode_words, encode
from rollart.sandbox.options import KubernetesOptions, SandboxOptions
from rollart.sandbox.process import KILLED, classify
from rollart.sandbox.root import RUNNER
from rollart.types import Program, ProgramEnd, ProgramLimits, ProgramResult

USER = 65534
FOLDER = "/program"
RUNNER_BYTES = 32 * 2**20
"""Memory for the runner, added to the program's own limit."""
LABELS = {"app.kubernetes.io/name": "rollart-sandbox"}


def network_policy(options: KubernetesOptions) -> dict[str, Any]:
    """Return the policy that blocks all traffic of the namespace's sandbox pods."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "rollart-sandbox-deny-all", "namespace": options.namespace},
        "spec": {
            "podSelector": {"matchLabels": LABELS},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [],
            "egress": [],
        },
    }


def secret(name: str, program: Program, options: KubernetesOptions) -> dict[str, Any]:
    """Return the secret that holds the runner and the program."""
    limits = program.limits
    rlimits = {"RLIMIT_CORE": 0, "RLIMIT_CPU": math.ceil(limits.cpu_s), "RLIMIT_NOFILE": 1024}
    rlimits["RLIMIT_FSIZE"] = limits.files_bytes
    message = encode(program, Setting(rlimits=rlimits, wall_s=limits.wall_s))
    data = {"runner.py": RUNNER.read_bytes(), "message": message}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": options.namespace, "labels": LABELS},
        "immutable": True,
        "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
    }


def pod(name: str, limits: ProgramLimits, options: KubernetesOptions) -> dict[str, Any]:
    """Return the manifest of the pod that runs one program."""
    volumes = [
        {"name": "program", "secret": {"secretName": name, "defaultMode": 0o444}},
        {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": str(limits.files_bytes)}},
    ]
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        # Ends the pod even if this process dies and cannot delete it.
        "activeDeadlineSeconds": math.ceil(options.start_timeout_s + limits.wall_s),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostNetwork": False,
        "hostPID": False,
        "hostIPC": False,
        "shareProcessNamespace": False,
        "terminationGracePeriodSeconds": 0,
        # A name server that answers nothing: lookups would otherwise leave the pod.
        "dnsPolicy": "None",
        "dnsConfig": {"nameservers": ["127.0.0.1"]},
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [_container(limits, options)],
        "volumes": volumes,
    }
    if options.runtime_class:
        spec["runtimeClassName"] = options.runtime_class
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": options.namespace, "labels": LABELS},
        "spec": spec,
    }


def _container(limits: ProgramLimits, options: KubernetesOptions) -> dict[str, Any]:
    memory = str(limits.memory_bytes + limits.files_bytes + RUNNER_BYTES)
    return {
        "name": "program",
        "image": options.image,
        "command": [
            "/bin/sh",
            "-c",
            f"exec python3 -s -S {FOLDER}/runner.py --line < {FOLDER}/message",
        ],
        "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108
        "resources": {
            "limits": {"cpu": "1", "memory": memory, "ephemeral-storage": "16Mi"},
            "requests": {"cpu": "100m", "memory": memory},
        },
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "privileged": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "program", "mountPath": FOLDER, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
        ],
    }


ENDED = ("Succeeded", "Failed")
MOST_LOG_BYTES = 16 * 2**20
TIMEOUT_S = 30.0


class KubernetesClient:
    """The part of a cluster's REST interface that sandboxes need."""

    def __init__(self, options: KubernetesOptions) -> None:
        url = options.url or _own_cluster()
        parts = urlsplit(url)
        self._host = parts.netloc
        self._is_secure = parts.scheme == "https"
        self._options = options
        if self._is_secure and not Path(options.ca_file).is_file():
            raise ConfigError("sandbox.kubernetes.ca_file", options.ca_file, "does not exist")
        if not Path(options.token_file).is_file():
            raise ConfigError("sandbox.kubernetes.token_file", options.token_file, "does not exist")

    def call(self, method: str, path: str, body: object = None) -> bytes:
        """Make one request and return its response body; raise a SandboxError if it failed."""
        connection, response = self._open(method, path, body, TIMEOUT_S)
        try:
            return response.read(MOST_LOG_BYTES)
        finally:
            connection.close()

    def watch(self, path: str, timeout_s: float) -> Iterator[Mapping[str, Any]]:
        """Yield the events of a watch as they arrive."""
        connection, response = self._open("GET", path, None, timeout_s)
        try:
            while line := response.readline():
                yield json.loads(line)
        except TimeoutError:
            raise SandboxError(f"the pod did not end within {timeout_s:.0f} s") from None
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
        self._cluster = KubernetesClient(options.kubernetes)
        self._slots = asyncio.Semaphore(options.concurrency)
        self._base = f"/api/v1/namespaces/{quote(options.kubernetes.namespace)}"
        self._running: set[asyncio.Task[Any]] = set()
        self._has_policy = False

    def describe(self) -> Mapping[str, str]:
        """Return which mechanism enforces each limit."""
        return {
            "user": "65534, no service account",
            "seccomp": "RuntimeDefault",
            "memory": "the pod's limit, private files included",
            "cpu": "rlimit, each process by itself; one core for all",
            "processes": "the node's limit for a pod",
            "priority": "the cluster's",
            "root": self._options.image,
        }

    async def run(
        self, program: Program, *, talk: Talk | None = None, is_trusted: bool = False
    ) -> ProgramResult:
        """Run a program until it ends or reaches a limit; cancelling the await deletes its pod.

        Nothing can be said to a pod while it runs.
        """
        del is_trusted
        if talk is not None:
            fix = "cannot talk to a program while it runs: use bubblewrap, or tests that are calls"
            raise ConfigError("sandbox.kind", "kubernetes", fix)
        async with self._slots:
            task = asyncio.current_task()
            assert task is not None
            self._running.add(task)
            try:
                return await self._run(program)
            finally:
                self._running.discard(task)

    async def close(self) -> None:
        """Cancel all runs; each deletes its own pod."""
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
        """Create the network policy before the first pod, unless it exists (409)."""
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
        """Create an object; when cancelled, wait for the request first, so it can be deleted."""
        path = f"{self._base}/{kind}"
        making = asyncio.create_task(asyncio.to_thread(self._cluster.call, "POST", path, manifest))
        try:
            await asyncio.shield(making)
        except asyncio.CancelledError:
            while not making.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait({making})
            making.exception()  # Marks it as retrieved; the object is deleted in either case.
            raise

    async def _delete(self, kind: str, name: str) -> None:
        """Delete an object; one that was never created (404) is no error."""
        path = f"{self._base}/{kind}/{name}?gracePeriodSeconds=0"
        try:
            await asyncio.to_thread(self._cluster.call, "DELETE", path)
        except SandboxError as error:
            if ": 404 " not in str(error):
                raise

    def _await_end(self, name: str, wall_s: float) -> Mapping[str, Any]:
        """Watch a pod until it has ended and return its status."""
        timeout_s = self._options.start_timeout_s + wall_s + TIMEOUT_S
        selector = quote(f"metadata.name={name}")
        path = f"{self._base}/pods?watch=1&fieldSelector={selector}&timeoutSeconds={timeout_s:.0f}"
        for event in self._cluster.watch(path, timeout_s):
            status = event["object"].get("status", {})
            if event["type"] in ("DELETED", "ERROR"):
                break
            if status.get("phase") in ENDED:
                return status
        raise SandboxError(f"pod {name} was deleted or its watch closed before it ended")

    def _read_log(self, name: str) -> bytes:
        return self._cluster.call(
            "GET", f"{self._base}/pods/{name}/log?limitBytes={MOST_LOG_BYTES}"
        )


def conclude(status: Mapping[str, Any], log: bytes, *, total_s: float) -> ProgramResult:
    """Return a program's result from its pod's last status and log."""
    states = [each.get("state", {}) for each in status.get("containerStatuses", [])]
    reasons = {state.get("terminated", {}).get("reason") for state in states}
    reached: ProgramEnd | None = "memory" if "OOMKilled" in reasons else None
    report = decode_words(log)
    if reached is None and not {"code", "signal", "wall"} & report.keys():
        why = status.get("reason") or status.get("message") or ", ".join(map(str, reasons))
        raise SandboxError(f"the pod ended without a report of its program: {why}")
    end, exit_code = classify(report, reached)
    wall_s = float(report.get("wall_s", total_s))
    return ProgramResult(
        end=end,
        exit_code=KILLED if reached else exit_code,
        stdout=binascii.a2b_base64(report.get("stdout", "")),
        stderr=binascii.a2b_base64(report.get("stderr", "")),
        is_cut=report.get("is_cut") == "1",
        wall_s=wall_s,
        start_s=max(0.0, total_s - wall_s),
    )


def _own_cluster() -> str:
    """Return the API server of the cluster this process runs in."""
    host = os.environ.get("KUBERNETES_SERVICE_HOST", "")
    if not host:
        fix = "must name the API server, because this process does not run inside a cluster"
        raise ConfigError("sandbox.kubernetes.url", "", fix)
    return f"https://{host}:{os.environ.get('KUBERNETES_SERVICE_PORT', '443')}"
