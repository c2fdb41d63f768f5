"""The pod adapter against a small API server on the loopback whose node really runs the pods."""

import asyncio
import base64
import json
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT

from rollart.errors import ConfigError, SandboxError
from rollart.sandbox.kubernetes import KubernetesSandbox, conclude, network_policy, pod, secret
from rollart.sandbox.options import KubernetesOptions, SandboxOptions
from rollart.types import Program, ProgramLimits

TOKEN = "t0ken"
needs_bubblewrap = pytest.mark.skipif(
    shutil.which("bwrap") is None, reason="bubblewrap is not installed: apt-get install bubblewrap"
)


class Server(ThreadingHTTPServer):
    """Keeps objects, runs pods by bubblewrap, tells a watch what becomes of them."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.objects: dict[str, dict[str, Any]] = {}
        self.calls: list[tuple[str, str]] = []
        self.logs: dict[str, bytes] = {}
        self.verdict: dict[str, Any] | None = None
        self.deleted = threading.Event()
        self.may_make = threading.Event()
        self.may_make.set()

    def run_pod(self, name: str) -> bytes:
        """Do what a node does with a pod."""
        kept = self.objects[f"secrets/{name}"]["data"]
        command = self.objects[f"pods/{name}"]["spec"]["containers"][0]["command"]
        with tempfile.TemporaryDirectory() as folder:
            for key, value in kept.items():
                (Path(folder) / key).write_bytes(base64.b64decode(value))
            container = ["bwrap", "--unshare-pid", "--as-pid-1", "--ro-bind", "/", "/"]
            container += ["--tmpfs", "/tmp", "--ro-bind", folder, "/tmp/program", "--proc", "/proc"]
            shell = command[2].replace("/program", "/tmp/program")
            environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
            done = subprocess.run(
                [*container, *command[:2], shell], env=environment, capture_output=True, check=False
            )
        return done.stdout


class Handler(BaseHTTPRequestHandler):
    server: Server  # pyright: ignore[reportIncompatibleVariableOverride]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        kind = self.path.rsplit("/", 1)[1]
        if not self.allowed(kind):
            return
        if kind == "networkpolicies" and "networkpolicies/" in "".join(self.server.objects):
            self.answer(409, b"{}")
            return
        if kind == "secrets":
            self.server.may_make.wait(20)
        self.server.objects[f"{kind}/{body['metadata']['name']}"] = body
        self.answer(201, b"{}")

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if not self.allowed(path.rsplit("/", 1)[1]):
            return
        if path.endswith("/log"):
            self.answer(200, self.server.logs[path.split("/")[-2]])
            return
        name = self.path.partition("metadata.name%3D")[2].partition("&")[0]
        self.send_response(200)
        self.end_headers()
        self.event({"phase": "Pending"})
        if self.server.verdict == {"phase": "Hanging"}:
            self.server.deleted.wait(20)
            return
        self.server.logs[name] = self.server.run_pod(name)
        self.event(self.server.verdict or {"phase": "Succeeded"})

    def do_DELETE(self) -> None:
        key = "/".join(self.path.partition("?")[0].split("/")[-2:])
        if not self.allowed(key.split("/")[0]):
            return
        found = self.server.objects.pop(key, None)
        self.server.deleted.set()
        self.answer(404 if found is None else 200, b"{}")

    def allowed(self, kind: str) -> bool:
        self.server.calls.append((self.command, kind))
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            self.answer(401, b'{"message": "no"}')
            return False
        return True

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def event(self, status: dict[str, Any]) -> None:
        self.wfile.write(json.dumps({"type": "MODIFIED", "object": {"status": status}}).encode())
        self.wfile.write(b"\n")
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


@contextmanager
def cluster() -> Iterator[Server]:
    server = Server()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def options(server: Server, folder: Path, *, token: str = TOKEN) -> SandboxOptions:
    file = folder / "token"
    file.write_text(token)
    url = f"http://127.0.0.1:{server.server_address[1]}"
    return SandboxOptions(
        kind="kubernetes", kubernetes=KubernetesOptions(url=url, token_file=str(file))
    )


@needs_bubblewrap
def test_a_pod_runs_a_program_and_everything_made_for_it_is_deleted(tmp_path: Path) -> None:
    programs = [
        Program(
            argv=("python3", "main.py"),
            files={"main.py": b"import sys; print(input()); print('\xc3\xa4', file=sys.stderr)"},
            stdin=b"in\n",
        ),
        Program(argv=("sh", "-c", "kill -9 $$")),
        Program(argv=("sleep", "600"), limits=ProgramLimits(wall_s=0.3)),
        Program(argv=("sh", "-c", "yes | head -c 9999"), limits=ProgramLimits(output_bytes=4)),
    ]

    async def all_of_them(server: Server) -> list[tuple[str, int, bytes, bytes, bool]]:
        sandbox = KubernetesSandbox(options(server, tmp_path))
        results = [await sandbox.run(program) for program in programs]
        await sandbox.close()
        return [(r.end, r.exit_code, r.stdout, r.stderr, r.is_cut) for r in results]

    with cluster() as server:
        results = asyncio.run(all_of_them(server))
        assert results == [
            ("exited", 0, b"in\n", "ä\n".encode(), False),
            ("killed", 137, b"", b"", False),
            ("wall", 137, b"", b"", False),
            ("exited", 0, b"y\ny\n", b"", True),
        ]
        assert list(server.objects) == ["networkpolicies/rollart-sandbox-deny-all"]
        assert server.calls[:3] == [
            ("POST", "networkpolicies"),
            ("POST", "secrets"),
            ("POST", "pods"),
        ]


@needs_bubblewrap
def test_a_pod_the_cluster_stopped_for_memory_ended_by_memory(tmp_path: Path) -> None:
    async def one(server: Server) -> tuple[str, int]:
        result = await KubernetesSandbox(options(server, tmp_path)).run(Program(argv=("true",)))
        return result.end, result.exit_code

    with cluster() as server:
        state = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
        server.verdict = {"phase": "Failed", "containerStatuses": [{"state": state}]}
        assert asyncio.run(one(server)) == ("memory", 137)


def test_cancelling_a_run_deletes_its_pod(tmp_path: Path) -> None:
    async def cancel(server: Server) -> bool:
        sandbox = KubernetesSandbox(options(server, tmp_path))
        running = asyncio.create_task(sandbox.run(Program(argv=("true",))))
        while ("GET", "pods") not in server.calls:
            await asyncio.sleep(0.01)
        await sandbox.close()
        return running.cancelled()

    with cluster() as server:
        server.verdict = {"phase": "Hanging"}
        assert asyncio.run(cancel(server))
        assert list(server.objects) == ["networkpolicies/rollart-sandbox-deny-all"]


def test_cancelling_a_run_while_its_secret_is_made_leaves_none(tmp_path: Path) -> None:
    async def cancel(server: Server) -> bool:
        sandbox = KubernetesSandbox(options(server, tmp_path))
        running = asyncio.create_task(sandbox.run(Program(argv=("true",))))
        while ("POST", "secrets") not in server.calls:
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.wait({running}, timeout=0.1)
        server.may_make.set()
        await asyncio.wait({running})
        return running.cancelled()

    with cluster() as server:
        server.may_make.clear()
        assert asyncio.run(cancel(server))
        assert list(server.objects) == ["networkpolicies/rollart-sandbox-deny-all"]


def test_a_refusal_and_a_silent_pod_are_the_sandboxs_failure(tmp_path: Path) -> None:
    with cluster() as server:
        sandbox = KubernetesSandbox(options(server, tmp_path, token="wrong"))
        with pytest.raises(SandboxError, match="401"):
            asyncio.run(sandbox.run(Program(argv=("true",))))
        assert server.objects == {}
    with pytest.raises(SandboxError, match="DeadlineExceeded"):
        conclude({"phase": "Failed", "reason": "DeadlineExceeded"}, b"", total_s=1.0)


def test_a_pod_is_asked_for_with_nothing_it_does_not_need() -> None:
    settings = KubernetesOptions(runtime_class="gvisor")
    manifest = pod("p", ProgramLimits(), settings)
    spec = manifest["spec"]
    [container] = spec["containers"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["restartPolicy"] == "Never"
    assert spec["activeDeadlineSeconds"] == 130
    assert spec["runtimeClassName"] == "gvisor"
    assert spec["securityContext"] == {
        "runAsNonRoot": True,
        "runAsUser": 65534,
        "runAsGroup": 65534,
        "fsGroup": 65534,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "privileged": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert container["resources"]["limits"] == {
        "cpu": "1",
        "memory": str((512 + 64 + 32) * 2**20),
        "ephemeral-storage": "16Mi",
    }
    assert network_policy(settings)["spec"] == {
        "podSelector": {"matchLabels": manifest["metadata"]["labels"]},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [],
        "egress": [],
    }
    assert set(secret("p", Program(argv=("true",)), settings)["data"]) == {"runner.py", "message"}


def test_a_cluster_that_cannot_be_reached_safely_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match="must be https"):
        KubernetesOptions(url="http://10.0.0.1")
    with pytest.raises(ConfigError, match="does not run inside a cluster"):
        KubernetesSandbox(SandboxOptions(kind="kubernetes"))
    missing = KubernetesOptions(url="https://10.0.0.1", ca_file=str(tmp_path / "none"))
    with pytest.raises(ConfigError, match="ca_file"):
        KubernetesSandbox(SandboxOptions(kind="kubernetes", kubernetes=missing))


def test_the_files_to_deploy_say_what_the_adapter_does():
    yaml = pytest.importorskip("yaml")
    deploy, options = ROOT / "deploy", KubernetesOptions()
    shown = yaml.safe_load((deploy / "kubernetes_pod.yaml").read_text())
    assert shown == pod("rollart-example", ProgramLimits(), options)
    documents = list(yaml.safe_load_all((deploy / "kubernetes_sandbox.yaml").read_text()))
    assert network_policy(options) in documents
    by_kind = {each["kind"]: each for each in documents}
    assert by_kind["Namespace"]["metadata"]["name"] == options.namespace
    assert {
        name: rule["verbs"] for rule in by_kind["Role"]["rules"] for name in rule["resources"]
    } == {
        "pods": ["create", "delete", "get", "list", "watch"],
        "secrets": ["create", "delete"],
        "pods/log": ["get"],
        "networkpolicies": ["create"],
    }
