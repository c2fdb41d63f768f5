"""The factory of invokers: opens the kind that the options name and makes it reliable.

A kind's packages (httpx, boto3) are imported only when it is chosen.
"""

from collections.abc import Callable
from importlib import import_module

from rollart.clock import Clock
from rollart.errors import ConfigError
from rollart.plugins import HTTP_INVOKER, LAMBDA_INVOKER
from rollart.ports import RewardInvoker
from rollart.rewards.invoke.options import InvokerOptions
from rollart.rewards.invoke.pool import LocalInvoker
from rollart.rewards.invoke.retry import CallLine, ReliableInvoker


def open_invoker(
    options: InvokerOptions,
    *,
    clock: Clock | None = None,
    on_call: Callable[[CallLine], None] | None = None,
    warn: Callable[[str], None] | None = None,
) -> ReliableInvoker:
    """Return the invoker the options name, wrapped in a ReliableInvoker."""
    inner = _open(options, clock)
    return make_reliable(inner, options, clock=clock, on_call=on_call, warn=warn)


def make_reliable(
    inner: RewardInvoker,
    options: InvokerOptions,
    *,
    clock: Clock | None = None,
    on_call: Callable[[CallLine], None] | None = None,
    warn: Callable[[str], None] | None = None,
) -> ReliableInvoker:
    """Wrap an invoker with the retries, limits and circuits of the options."""
    scaling = options.scaling
    return ReliableInvoker(
        inner,
        options=options.reliability,
        places=scaling.max_instances * scaling.concurrency,
        queue_limit=scaling.queue_limit,
        clock=clock,
        on_call=on_call,
        warn=warn,
    )


def _open(options: InvokerOptions, clock: Clock | None) -> RewardInvoker:
    scaling = options.scaling
    places = scaling.max_instances * scaling.concurrency
    match options.kind:
        case "local":
            return LocalInvoker(scaling, limits=options.limits, clock=clock)
        case "http":
            module = import_module(HTTP_INVOKER)
            return module.HttpInvoker(
                options.url,
                token=options.token,
                token_env=options.token_env,
                limits=options.limits,
                connections=places,
            )
        case "lambda":
            module = import_module(LAMBDA_INVOKER)
            return module.LambdaInvoker(
                options.function_name,
                limits=options.limits,
                connections=places,
                region=options.region,
                endpoint_url=options.endpoint_url,
            )
        case "ray":
            fix = "create a rollart.cluster.ray_rewards.RayInvoker and wrap it with make_reliable"
            raise ConfigError("invoker.kind", options.kind, fix)
