"""`rollart function`: reward functions as HTTP functions and as packages for a cloud."""

import os
import secrets
import sys
from argparse import ArgumentParser, Namespace
from contextlib import suppress
from pathlib import Path

from rollart.cli.output import say
from rollart.cli.parser import Parser
from rollart.control.autoscaling import Scaling
from rollart.errors import ConfigError, UserError
from rollart.rewards.invoke.lambda_package import HANDLER, write_lambda_package
from rollart.rewards.invoke.options import CallLimits, InvokerOptions
from rollart.rewards.invoke.server import ServeOptions, bind, default_port, serve

TOKEN_ENV = InvokerOptions().token_env
_FLAGS = {
    "port": "--port",
    "max_instances": "--instances",
    "concurrency": "--concurrency",
    "timeout_s": "--timeout-s",
    "memory_bytes": "--memory-mib",
}
"""The flag that sets a field."""


def add_function(parser: ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = "Serve reward functions over HTTP, or pack them for a cloud."
    actions = parser.add_subparsers(
        dest="action", required=True, parser_class=Parser, metavar="serve|package"
    )
    about = "Serve reward functions over HTTP, as function platforms expect it."
    serve = actions.add_parser("serve", description=about, help=about)
    _add_serving(serve)
    about = "Pack reward functions and the code that runs them."
    package = actions.add_parser("package", description=about, help=about)
    _add_packing(package)
    for action in (serve, package):
        action.add_argument(
            "functions",
            nargs="+",
            metavar="FUNCTION",
            help="a shipped function, or module:function",
        )


def _add_serving(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--host", default="127.0.0.1", help="listen on this address (default: 127.0.0.1)"
    )
    parser.add_argument(
        "--port", type=int, help="listen on this port; 0 takes a free one (default: $PORT, or 8080)"
    )
    parser.add_argument(
        "--token",
        default="",
        help="require this token (default: $ROLLART_FUNCTION_TOKEN, or a new one)",
    )
    parser.add_argument("--token-file", metavar="FILE", help="read the token from FILE")
    parser.add_argument(
        "--no-token", action="store_true", help="require no token, because a proxy checks callers"
    )
    parser.add_argument(
        "--instances",
        type=int,
        default=0,
        metavar="N",
        help="use at most N processes (default: one per core)",
    )
    parser.add_argument(
        "--concurrency", type=int, default=1, metavar="N", help="run N calls at once in a process"
    )
    parser.add_argument(
        "--timeout-s",
        type=float,
        default=60.0,
        metavar="S",
        help="end a call after S seconds (default 60)",
    )
    parser.add_argument(
        "--memory-mib",
        type=int,
        default=2048,
        metavar="N",
        help="give a process N MiB (default 2048)",
    )


def _add_packing(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--lambda",
        dest="lambda_zip",
        metavar="OUT.zip",
        required=True,
        help="write a package for AWS Lambda to OUT.zip",
    )
    parser.add_argument(
        "--include",
        action="append",
        default=[],
        metavar="PATH",
        help="add this file or directory to the package",
    )


def run_function(arguments: Namespace) -> int:
    """Serve or package."""
    sys.path.insert(0, str(Path.cwd()))
    if arguments.action == "serve":
        return _serve(arguments)
    return _package(arguments)


def _serve(arguments: Namespace) -> int:
    token, origin = _token(arguments)
    try:
        options = _serve_options(arguments, token)
    except ConfigError as error:
        flag = _FLAGS.get(error.field.rpartition(".")[2])
        if flag is None:
            raise
        given = getattr(arguments, flag.removeprefix("--").replace("-", "_"))
        raise UserError(f"{flag} {given}: {error.fix}") from error
    listener = bind(options)
    host = f"[{options.host}]" if ":" in options.host else options.host
    say(f"serving {', '.join(options.functions)} at http://{host}:{listener.getsockname()[1]}/")
    say(origin)
    sys.stdout.flush()
    with suppress(KeyboardInterrupt):  # the usual way to end it
        serve(options, listener)
    return 0


def _serve_options(arguments: Namespace, token: str) -> ServeOptions:
    return ServeOptions(
        functions=tuple(arguments.functions),
        host=arguments.host,
        port=default_port() if arguments.port is None else arguments.port,
        token=token,
        scaling=Scaling(
            max_instances=arguments.instances or os.cpu_count() or 1,
            min_instances=1,
            concurrency=arguments.concurrency,
        ),
        limits=CallLimits(timeout_s=arguments.timeout_s, memory_bytes=arguments.memory_mib * 2**20),
    )


def _token(arguments: Namespace) -> tuple[str, str]:
    """Return the token and a line that says where it is from."""
    given = [arguments.no_token, bool(arguments.token), arguments.token_file is not None]
    if sum(given) > 1:
        raise UserError("--token, --token-file and --no-token: use one of them")
    if arguments.no_token:
        return "", "no token is required: anyone who can reach this address may call it"
    if arguments.token:
        return arguments.token, "callers must show the token of --token"
    if arguments.token_file is not None:
        return _read_token(Path(arguments.token_file)), "callers must show the token in the file"
    if token := os.environ.get(TOKEN_ENV):
        return token, f"callers must show the token in {TOKEN_ENV}"
    token = secrets.token_urlsafe(24)
    return token, f"callers must show this token: {TOKEN_ENV}={token}"


def _read_token(path: Path) -> str:
    try:
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UserError(f"--token-file {path}: {error.strerror}") from error
    if not token:
        raise UserError(f"--token-file {path}: the file is empty")
    return token


def _package(arguments: Namespace) -> int:
    out = Path(arguments.lambda_zip)
    include = [Path(each) for each in arguments.include]
    package = write_lambda_package(out, arguments.functions, include=include)
    say(f"{package.path}: {package.files} files, {package.zipped_bytes} bytes")
    say(f"runtime python{sys.version_info.major}.{sys.version_info.minor}, handler {HANDLER}")
    return 0
