import json
import socket
import zipfile
from argparse import Namespace
from pathlib import Path

import pytest

from rollart.cli import function, main
from rollart.cli.function import _token
from rollart.cli.parser import parse

GRADERS = "def score(trajectory):\n    return 1.0\n"


@pytest.fixture
def graders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cli_graders.py").write_text(GRADERS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delenv("ROLLART_FUNCTION_TOKEN", raising=False)
    monkeypatch.delenv("PORT", raising=False)
    return tmp_path


def arguments(*words: str) -> Namespace:
    return parse(["function", "serve", *words, "cli_graders:score"])


def test_a_function_is_packed_for_lambda(graders: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["function", "package", "--lambda", "out.zip", "cli_graders:score"]) == 0
    with zipfile.ZipFile(graders / "out.zip") as archive:
        assert archive.read("cli_graders.py").decode() == GRADERS
        assert json.loads(archive.read("rollart_functions.json")) == ["cli_graders:score"]
        assert "rollart/rewards/invoke/lambda_handler.py" in archive.namelist()
    told = capsys.readouterr().out
    assert "handler rollart.rewards.invoke.lambda_handler.handler" in told


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("serve", "nothing:here"), "no module nothing here or installed"),
        (
            ("serve", "--memory-mib", "0", "cli_graders:score"),
            "--memory-mib 0: must be more than 0",
        ),
        (("package", "--lambda", "no/x.zip", "cli_graders:score"), "no/x.zip: cannot be written"),
        (("serve", "--port", "70000", "cli_graders:score"), "--port 70000: must lie between"),
        (("serve", "--instances", "-1", "cli_graders:score"), "--instances -1: must be"),
        (("serve", "--timeout-s", "0", "cli_graders:score"), "--timeout-s 0.0: must be more"),
        (
            ("serve", "--token", "a", "--no-token", "cli_graders:score"),
            "--token, --token-file and --no-token: use one of them",
        ),
        (
            ("serve", "--token-file", "missing", "cli_graders:score"),
            "--token-file missing: No such file or directory",
        ),
        (("package", "--lambda", "out.zip", "cli_graders:other"), "has no function other"),
        (("package", "cli_graders:score"), "missing argument: --lambda"),
    ],
)
def test_what_cannot_be_is_one_message(graders, words, message, capsys):
    assert main(["function", *words]) == 2
    assert message in capsys.readouterr().err


def test_a_port_that_is_no_number_is_one_message(graders, monkeypatch, capsys):
    monkeypatch.setenv("PORT", "http")
    assert main(["function", "serve", "cli_graders:score"]) == 2
    assert "PORT = 'http': must be a number" in capsys.readouterr().err


def test_a_taken_port_is_one_message(graders, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert main(["function", "serve", "--port", port, "cli_graders:score"]) == 2
    assert f"cannot serve on 127.0.0.1:{port}" in capsys.readouterr().err


def test_an_interrupt_ends_serving_without_an_error(graders, monkeypatch, capsys):
    def serve(_options: object, listener: socket.socket) -> None:
        listener.close()
        raise KeyboardInterrupt

    monkeypatch.setattr(function, "serve", serve)
    assert main(["function", "serve", "--port", "0", "cli_graders:score"]) == 0
    assert capsys.readouterr().err == ""


def test_callers_must_show_a_token_unless_that_is_refused(graders: Path, monkeypatch):
    made, told = _token(arguments())
    assert len(made) >= 32
    assert made in told
    assert _token(arguments())[0] != made
    assert _token(arguments("--token", "given"))[0] == "given"
    assert _token(arguments("--no-token"))[0] == ""
    (graders / "token").write_text("from a file\n")
    assert _token(arguments("--token-file", "token"))[0] == "from a file"
    monkeypatch.setenv("ROLLART_FUNCTION_TOKEN", "from the environment")
    token, told = _token(arguments())
    assert token == "from the environment"
    assert token not in told
    (graders / "token").write_text("\n")
    with pytest.raises(Exception, match="the file is empty"):
        _token(arguments("--token-file", "token"))
