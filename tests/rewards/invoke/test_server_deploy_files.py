"""What the files for the platforms say agrees with the server they start."""

import pytest
from checkout import ROOT

from rollart.cli.parser import parse
from rollart.rewards.invoke.server import CALL_PATHS, HEALTH_PATHS

yaml = pytest.importorskip("yaml")
DEPLOY = ROOT / "deploy"


def read(name: str) -> dict:
    return yaml.safe_load((DEPLOY / name).read_text())


def test_the_image_starts_the_server_with_arguments_it_takes():
    text = (DEPLOY / "Dockerfile").read_text()
    command = text[text.index("CMD exec ") + len("CMD exec ") :].replace("\\\n", " ")
    values = {"INSTANCES": "1", "CONCURRENCY": "1", "TIMEOUT_S": "60", "FUNCTIONS": "exact math"}
    command = command.replace('${TOKEN_FILE:+--token-file "$TOKEN_FILE"}', "--token-file token")
    for name, value in values.items():
        command = command.replace(f'"${name}"', value).replace(f"${name}", value)
    words = command.split()
    assert words[:3] == ["rollart", "function", "serve"]
    arguments = parse(words[1:])
    assert arguments.functions == ["exact", "math"]
    assert (arguments.host, arguments.instances, arguments.concurrency) == ("0.0.0.0", 1, 1)
    assert (arguments.timeout_s, arguments.token_file) == (60.0, "token")
    assert "PORT=8080" in text


def test_knative_waits_longer_than_a_call_may_take_and_asks_a_health_path():
    spec = read("knative.yaml")["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    env = {each["name"]: each.get("value") for each in container["env"]}
    assert spec["timeoutSeconds"] > float(env["TIMEOUT_S"])
    assert spec["containerConcurrency"] == 1
    assert container["ports"] == [{"containerPort": 8080}]
    assert container["readinessProbe"]["httpGet"]["path"] in HEALTH_PATHS
    assert "ROLLART_FUNCTION_TOKEN" in env


def test_openfaas_gives_the_token_as_a_file_and_asks_health_paths():
    function = read("openfaas.yaml")["functions"]["rollart-reward"]
    (secret,) = function["secrets"]
    assert function["environment"]["TOKEN_FILE"] == f"/var/openfaas/secrets/{secret}"
    assert set(function["annotations"].values()) <= HEALTH_PATHS
    assert function["labels"]["com.openfaas.scale.zero"] == "true"


def test_function_compute_waits_longer_than_a_call_may_take_and_may_invoke():
    props = read("function_compute.yaml")["resources"]["reward"]["props"]
    container = props["customContainerConfig"]
    assert props["timeout"] > float(props["environmentVariables"]["TIMEOUT_S"])
    assert (container["port"], props["instanceConcurrency"]) == (8080, 1)
    assert container["healthCheckConfig"]["httpGetUrl"] in HEALTH_PATHS
    assert "/invoke" in CALL_PATHS
