"""What a cluster is asked for: one pod and one secret for a program, a policy for the namespace.

A pod runs the same runner as any sandbox here, from a secret that holds it and the message. It is
no user of its node's, has no service account token, no rights, a read-only root, a small private
/tmp, limits of its own, and is never restarted. The namespace's policy lets nothing in or out.
"""

import base64
import math
from typing import Any

from rollart.sandbox.messages import Setting, encode
from rollart.sandbox.options import KubernetesOptions
from rollart.sandbox.roots import RUNNER
from rollart.types import Program, ProgramLimits

USER = 65534
FOLDER = "/program"
RUNNER_BYTES = 32 * 2**20
"""What the runner may take beside the program's own memory."""
LABELS = {"app.kubernetes.io/name": "rollart-sandbox"}


def network_policy(options: KubernetesOptions) -> dict[str, Any]:
    """Return the policy that cuts all sandbox pods of the namespace off."""
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
    """Return the pod that runs one program."""
    volumes = [
        {"name": "program", "secret": {"secretName": name, "defaultMode": 0o444}},
        {"name": "tmp", "emptyDir": {"medium": "Memory", "sizeLimit": str(limits.files_bytes)}},
    ]
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": math.ceil(options.start_timeout_s + limits.wall_s),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostNetwork": False,
        "hostPID": False,
        "hostIPC": False,
        "shareProcessNamespace": False,
        "terminationGracePeriodSeconds": 0,
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
